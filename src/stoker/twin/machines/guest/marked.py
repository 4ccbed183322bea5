"""Processes found by a mark in their environment, which their children inherit, and their descendants."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

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
