"""The program that a server runs on a host for as long as it is connected: it starts, watches and stops agents there.

Sent as text over the connection and run by any Python 3 of the host: the standard library, and nothing of Stoker. It
reads one request a line as JSON and answers in the same way. Agents do not depend on it: they outlive the connection.
"""

import base64
import errno
import fcntl
import hashlib
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from typing import Any

Words = dict[str, Any]
READY = "stoker-host-1"  # the first line; a shell may have printed others before
TOP = pathlib.Path.home() / ".stoker-node"
LEAST_FREE_BYTES = 200 << 20
REACH_S = 10  # for a store to take a connection
SURVEY_S = 45  # for the container engines of a host to answer
END_S = 40  # to stop the processes of a node and upload what they printed
LONGEST_FOLDER = 60  # of a socket
UNSHIPPED = 3  # the exit code of `end` while the store is unreachable
BOOT = "/proc/sys/kernel/random/boot_id"


class HostRefusal(Exception):
    """Why a request cannot be carried out: its code, and words for people."""


class HostLock:
    """The kernel releases it however its holder ends."""

    def __init__(self, path: pathlib.Path, *, shared: bool = False, wait: bool = True) -> None:
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self.fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
        except BaseException:
            os.close(self.fd)
            raise

    def __enter__(self) -> "HostLock":
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self.fd)


def hello(server: str) -> Words:
    top = _private(TOP / server)
    for name in ("nodes", "agents", "environments"):
        _private(top / name)
    probe = top / f".probe-{os.getpid()}"
    probe.write_bytes(b"x")  # a full disk refuses this, not the folder
    probe.unlink()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    cpus = len(os.sched_getaffinity(0))
    gpus = len(list(pathlib.Path("/dev").glob("nvidia[0-9]*")))
    free = shutil.disk_usage(top).free
    version = ".".join(map(str, sys.version_info[:3]))
    return {"cpus": cpus, "memory_gb": memory / 1e9, "gpus": gpus, "free_bytes": free, "python": version}


def door(server: str) -> Words:
    """Where the connection may bind its end of the tunnel: a name that nobody has used."""
    folder = _short(TOP / server)
    for old in folder.glob(f"line-{os.uname().nodename}-*"):
        if not pathlib.Path("/proc", old.name.rpartition("-")[2]).exists():
            old.unlink()
    return {"place": str(folder / f"line-{os.uname().nodename}-{os.getpid()}")}


def _short(folder: pathlib.Path) -> pathlib.Path:
    """A private folder for sockets: the kernel takes no long paths for them."""
    if len(str(folder)) <= LONGEST_FOLDER:
        return folder
    mark = hashlib.sha256(str(folder).encode()).hexdigest()[:12]
    return _private(pathlib.Path(tempfile.gettempdir()) / f".stoker-node-{os.getuid()}-{mark}")


def opened(server: str) -> Words:
    """Agents use the newest tunnel from now on."""
    here, link = TOP / server / f"door-{os.uname().nodename}", TOP / server / f".door-{os.getpid()}"
    link.unlink() if link.is_symlink() else None
    link.symlink_to(door(server)["place"])
    link.replace(here)
    return {}


def has(server: str, agent: str) -> Words:
    return {"there": (TOP / server / "agents" / agent).exists()}


def put(server: str, agent: str, data: str) -> Words:
    folder = TOP / server / "agents"
    part = folder / f".part-{os.getpid()}"
    try:
        part.write_bytes(base64.b64decode(data))
        part.replace(folder / agent)
    finally:
        part.unlink() if part.exists() else None
    return {}


def reach(server: str, address: str, port: int) -> Words:  # noqa: ARG001  # as every operation
    """Whether a store answers here. Behind a proxy, whoever uses it finds out."""
    if urllib.request.getproxies().keys() & {"http", "https"}:
        return {"why": ""}
    try:
        socket.create_connection((address, port), REACH_S).close()
    except OSError as error:
        return {"why": str(error)}
    return {"why": ""}


def engines(server: str, agent: str, image: str) -> Words:
    """What its container engines say of themselves, as JSON of the agent."""
    command = [sys.executable, "-I", "-S", str(TOP / server / "agents" / agent), "engines", "--image", image]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SURVEY_S)
    except subprocess.TimeoutExpired:
        raise HostRefusal("failed", f"its container engines did not answer within {SURVEY_S} s") from None
    if done.returncode:
        raise HostRefusal("failed", done.stderr.strip()[-300:])
    return {"said": done.stdout}


def start(server: str, key: str, agent: str, config: Words, slots: int) -> Words:
    """Once for each key, whoever asks how often: one that has died is not started again."""
    folder = TOP / server / "nodes" / key
    with HostLock(TOP / "lock"):
        if (folder / "identity.json").exists():
            return {}
        busy = [one for one in TOP.glob("*/nodes/*") if one != folder and _is_here(one) and _is_alive(one)]
        if len(busy) >= slots:
            raise HostRefusal("full", f"{len(busy)} of its {slots} slots are in use")
        free = shutil.disk_usage(TOP).free
        if free < LEAST_FREE_BYTES:
            raise HostRefusal("disk-full", f"its disk is full: {free / 1e6:.0f} MB are free below {TOP}")
        _private(folder)
        _launch(folder, TOP / server / "agents" / agent, config)
    return {}


def _launch(folder: pathlib.Path, agent: pathlib.Path, config: Words) -> None:
    """The lock goes to the new process, so that it always has a holder. Its settings contain secrets: they are in
    memory only."""
    release = {"folder": str(folder), "key": folder.name}
    arguments = {
        "--folder": str(folder / "node"),
        "--environments": str(folder.parents[1] / "environments"),
        **config["arguments"],
    }
    settings = os.memfd_create("settings")
    os.write(settings, json.dumps({**config, "arguments": arguments, "release": release}).encode())
    _write(folder / "identity.json", {"machine": _machine(), "boot": _boot(), "agent": str(agent)})
    with HostLock(folder / "lock", wait=False) as lock, (folder / "tenant.log").open("ab") as log:
        command = [sys.executable, "-I", "-S", str(agent), "tenant", "--config", f"/dev/fd/{settings}"]
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=folder,
            start_new_session=True,
            pass_fds=(lock.fd, settings),
        )
    os.close(settings)
    known = {"machine": _machine(), "boot": _boot(), "agent": str(agent), "pid": child.pid, "began": _began(child.pid)}
    _write(folder / "identity.json", known)
    threading.Thread(target=child.wait, daemon=True).start()


def look(server: str) -> Words:
    found = []
    with HostLock(TOP / "lock", shared=True):
        for folder in sorted((TOP / server / "nodes").iterdir()):
            known = _identity(folder)
            row = {"key": folder.name, "alive": _is_alive(folder), "begun": bool(known), "why": ""}
            if known and not row["alive"]:
                row["why"] = "its host was restarted" if known["boot"] != _boot() else _last_words(folder)
            lease = _read(folder / "lease.json")
            found.append({**row, "lease_until": lease.get("until", 0), "now": time.time()})
    return {"nodes": found}


def lease(server: str, key: str, seconds: float) -> Words:
    folder = TOP / server / "nodes" / key
    if folder.is_dir():
        _write(folder / "lease.json", {"until": time.time() + seconds})
    return {}


def stop(server: str, key: str) -> Words:
    """Leaves no process and no file. Where output is not uploaded yet, the folder stays: the call is repeated."""
    folder = TOP / server / "nodes" / key
    if not folder.is_dir():
        return {}
    known = _identity(folder)
    if known.get("pid") and _boot() == known["boot"] and _began(known["pid"]) == known["began"]:
        os.kill(known["pid"], signal.SIGKILL)
    agent = known.get("agent", "")
    if agent and pathlib.Path(agent).exists():
        command = [sys.executable, "-I", "-S", agent, "end", "--folder", str(folder / "node"), "--key", key]
        try:
            code = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=END_S).returncode
        except subprocess.TimeoutExpired:
            code = UNSHIPPED
        if code == UNSHIPPED:
            raise HostRefusal("unshipped", "its last log lines are not uploaded yet: the store is unreachable")
    _remove(folder)
    return {}


def _remove(folder: pathlib.Path) -> None:
    """Even where the script has taken its own right to write away."""
    for top, _, _ in os.walk(folder):
        pathlib.Path(top).chmod(0o700)
    shutil.rmtree(folder)


def _private(folder: pathlib.Path) -> pathlib.Path:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    seen = folder.lstat()
    if seen.st_uid != os.getuid() or not folder.is_dir() or folder.is_symlink():
        raise HostRefusal("not-ours", f"{folder} does not belong to the account that the server logs in to")
    folder.chmod(0o700)
    return folder


def _is_alive(folder: pathlib.Path) -> bool:
    try:
        with HostLock(folder / "lock", shared=True, wait=False):
            return False
    except BlockingIOError:
        return True
    except OSError:
        return False


def _is_here(folder: pathlib.Path) -> bool:
    """A home may be shared by several machines."""
    return _identity(folder).get("machine") == _machine()


def _machine() -> str:
    """Several containers or network namespaces of one computer are several hosts."""
    spaces = (pathlib.Path("/proc/self/ns", name).readlink() for name in ("net", "pid"))
    return ":".join([_boot(), *map(str, spaces)])


def _boot() -> str:
    return pathlib.Path(BOOT).read_text().strip()


def _began(pid: int) -> int | None:
    """When a process began: a pid alone may belong to another one by now."""
    try:
        return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None


def _identity(folder: pathlib.Path) -> Words:
    return _read(folder / "identity.json")


def _last_words(folder: pathlib.Path) -> str:
    for log in (folder / "node" / "agent.log", folder / "tenant.log"):
        try:
            lines = [line.strip() for line in log.read_text(errors="replace")[-4000:].splitlines() if line.strip()]
        except OSError:
            continue
        if lines:
            return f"its agent died: {lines[-1][:500]}"
    return "its agent was killed"


def _read(path: pathlib.Path) -> Words:
    try:
        found: Words = json.loads(path.read_text())
        return found
    except (OSError, ValueError):
        return {}


def _write(path: pathlib.Path, words: Words) -> None:
    part = path.with_suffix(".part")
    part.write_text(json.dumps(words))
    part.replace(path)


OPERATIONS: dict[str, Callable[..., Words]] = {
    one.__name__: one for one in (hello, door, opened, has, put, reach, engines, start, look, lease, stop)
}
SAYING = threading.Lock()


def say(words: Words) -> None:
    with SAYING:
        sys.stdout.write(json.dumps(words) + "\n")
        sys.stdout.flush()


def carry_out(asked: Words) -> None:
    try:
        found = OPERATIONS[asked["op"]](**asked["given"])
        say({"id": asked["id"], "found": found})
    except HostRefusal as why:
        say({"id": asked["id"], "code": why.args[0], "why": why.args[1]})
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        what = f"its disk is full: {error}" if full else str(error)
        say({"id": asked["id"], "code": "disk-full" if full else "failed", "why": what})
    except Exception as error:
        say({"id": asked["id"], "code": "failed", "why": f"{type(error).__name__}: {error}"})


def main() -> None:
    """Until the server hangs up. Each request has its own thread: a slow one keeps nobody waiting."""
    os.umask(0o077)
    say({"ready": READY})
    for line in sys.stdin.buffer:
        threading.Thread(target=carry_out, args=(json.loads(line),), daemon=True).start()
    for link in TOP.glob(f"*/door-{os.uname().nodename}"):
        if link.readlink().name == f"line-{os.uname().nodename}-{os.getpid()}":
            for one in (link.readlink(), link):
                one.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
