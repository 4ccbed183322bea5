"""Paths and processes of a machine: started by init, found by a mark, ended."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

UNIT_FOLDERS = (
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
)
START_AT_BOOT = "/etc/systemd/system"
SOCKET_FOLDER = "/run/twin"
SOCKET = "init.sock"


class GuestFolders:
    def __init__(self, root: str = "") -> None:
        self.root = root.rstrip("/")

    def __call__(self, path: str) -> str:
        """The path as this process reaches it; one below the root is unchanged."""
        inside = self.root and (path == self.root or path.startswith(f"{self.root}/"))
        return path if inside else f"{self.root}{path}"

    def path(self, path: str) -> Path:
        return Path(self(path))

    def unit_file(self, name: str) -> Path:
        for folder in UNIT_FOLDERS:
            found = self.path(folder) / name
            if found.is_file():
                return found
        raise FileNotFoundError(name)

    def enabled(self) -> list[str]:
        """Units that some target wants, by the links in `*.wants`."""
        return sorted({link.name for link in self.path(START_AT_BOOT).glob("*.wants/*.service")})

    def journal(self, unit: str) -> Path:
        return self.path("/var/log/journal") / f"{unit}.log"


_PROC = "/proc"


def members(mark: str, root: int | None = None) -> list[int]:
    """Every live process that carries `NAME=value`, or descends from one that does or from `root`; never this one."""
    if "=" not in mark:
        raise ValueError(f"{mark!r} is not a mark")  # an empty one would match every process
    table = _table(mark)
    children: dict[int, list[int]] = {}
    for pid, (parent, _) in table.items():
        children.setdefault(parent, []).append(pid)
    waiting = [pid for pid, (_, marked) in table.items() if marked or pid == root]
    found: set[int] = set()
    while waiting:
        pid = waiting.pop()
        if pid not in found and pid != os.getpid():
            found.add(pid)
            waiting += children.get(pid, [])
    return sorted(found)


def send(pids: list[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def end(mark: str, root: int | None = None, within_s: float = 10.0) -> bool:
    """Kills them all, repeatedly until none is left, because one may fork while it is being killed."""
    until = time.monotonic() + within_s
    while found := members(mark, root):
        if time.monotonic() > until:
            return False
        send(found, signal.SIGKILL)
        time.sleep(0.002)
    return True


def _table(mark: str) -> dict[int, tuple[int, bool]]:
    """Parent and mark of every live process."""
    return _table_of_proc(mark.encode()) if os.path.exists(f"{_PROC}/self/stat") else _table_of_ps(mark)  # noqa: PTH110


def _table_of_proc(mark: bytes) -> dict[int, tuple[int, bool]]:
    table = {}
    for name in os.listdir(_PROC):  # noqa: PTH208  # thousands of them
        if name.isdigit():
            with suppress(OSError):
                state, parent = _read(f"{_PROC}/{name}/stat").rpartition(b") ")[2].split(maxsplit=2)[:2]
                if state not in b"ZX":
                    table[int(name)] = (int(parent), _carries(name, mark))
    return table


def _carries(pid: str, mark: bytes) -> bool:
    try:
        return mark in _read(f"{_PROC}/{pid}/environ").split(b"\0")
    except OSError:  # another user's
        return False


def _read(path: str) -> bytes:
    with open(path, "rb") as file:  # noqa: PTH123
        return file.read()


def _table_of_ps(mark: str) -> dict[int, tuple[int, bool]]:
    """`-E` shows the environment after the command, for this user's processes."""
    import subprocess  # here, because it is slow to import and Linux does not need it

    text = subprocess.run(["ps", "-axwwE", "-o", "pid=,ppid=,stat=,command="], capture_output=True, text=True).stdout
    table = {}
    for line in text.splitlines():
        pid, parent, state, *words = line.split()
        if not state.startswith("Z"):
            table[int(pid)] = (int(parent), mark in words)
    return table


NO_SUCH_PROGRAM = 203  # exit codes of systemd
NO_SUCH_FOLDER = 200
NO_SUCH_USER = 217

_CHANGED = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE)


def spawn(words: Sequence[str], variables: Mapping[str, str], output: int, *, folder: str = "/", user: str = "") -> int:
    """Returns the pid. A failed start is an exit code of the process and a line in its output."""
    pid = os.fork()
    if pid:
        return pid
    try:
        _become(words, dict(variables), output, folder, user)
    finally:
        os._exit(NO_SUCH_PROGRAM)


def _become(words: Sequence[str], variables: dict[str, str], output: int, folder: str, user: str) -> None:
    os.setsid()
    for number in _CHANGED:
        signal.signal(number, signal.SIG_DFL)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    _try(NO_SUCH_USER, _change_user, user, variables)
    _try(NO_SUCH_FOLDER, os.chdir, folder)
    _try(NO_SUCH_PROGRAM, os.execvpe, words[0], list(words), variables)


def _change_user(user: str, variables: dict[str, str]) -> None:
    if not user or user == "root":
        return
    import pwd  # here, because few units have a user

    entry = pwd.getpwnam(user)
    variables.update(USER=user, LOGNAME=user, HOME=entry.pw_dir, SHELL=entry.pw_shell)
    os.initgroups(user, entry.pw_gid)
    os.setgid(entry.pw_gid)
    os.setuid(entry.pw_uid)


def _try(code: int, action: object, *arguments: object) -> None:
    try:
        action(*arguments)  # type: ignore[operator]  # any of three calls with different signatures
    except (OSError, KeyError) as error:
        os.write(2, f"could not start: {error}\n".encode())
        os._exit(code)
