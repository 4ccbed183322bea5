"""The processes of this machine: which belong to a node, how to stop them all, and what to clean up after a killed
agent."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from stoker.agent.machine.machine import NodeFolder
from stoker.agent.shipping.logs import Masking, RankLog
from stoker.errors import StokerError, StoreUnavailable
from stoker.files import claim
from stoker.model.orders import Orders
from stoker.model.wire import load
from stoker.stores import Store
from stoker.stores.folder.store import FolderStore
from stoker.stores.signing import unverified

MARK = "STOKER_NODE_KEY"  # in the environment of every process of a node, and so of its children
# In the environment of every process of a rank in a container: the pid of the process that stands in for it outside.
STANDIN = "STOKER_STANDIN"
_PROC = Path("/proc")
_WITHIN_S = 10.0  # for the kernel to end a process after SIGKILL


@dataclass(frozen=True, slots=True)
class FamilyProcess:
    pid: int
    parent: int
    group: int
    name: str
    marked: bool = False
    standin: int = 0  # the process outside that it is started for; 0: it is in no container


def adopt_orphans() -> bool:
    """Orphaned processes of ranks become children of this process. Linux only; False elsewhere."""
    if sys.platform != "linux":
        return False
    import ctypes  # here, because it is slow to import and only Linux needs it

    return bool(ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)


_PR_SET_CHILD_SUBREAPER = 36


def belonging_to(key: str, root: int | None = None, spared: Collection[int] = ()) -> list[FamilyProcess]:
    """Every process that carries the key's mark or descends from one that does, or from `root`; never this one."""
    alive = look(key)
    children: dict[int, list[FamilyProcess]] = {}
    for process in alive:
        children.setdefault(process.parent, []).append(process)
    spared = {*spared, *_ancestors(alive)}
    waiting = [process for process in alive if process.marked or process.parent == root]
    found: dict[int, FamilyProcess] = {}
    while waiting:
        process = waiting.pop()
        if process.pid not in found and process.pid not in spared:
            found[process.pid] = process
            waiting += children.get(process.pid, [])
    return list(found.values())


def end_all(
    key: str,
    root: int | None = None,
    spared: Collection[int] = (),
    *,
    asked_groups: Collection[int] = (),
    gentle_s: float = 0.0,
) -> int:
    """Stops every process of a node, and returns how many there were. With `gentle_s` they get SIGTERM first, except
    for `asked_groups`, which already did.

    Repeats until none is found, because a process may fork while it is being killed. Bounded, because some processes
    cannot be killed yet, for example in a hanging file system.
    """
    start = time.monotonic()
    seen: set[int] = set()
    while found := belonging_to(key, root, spared):
        passed_s = time.monotonic() - start
        if passed_s > gentle_s + _WITHIN_S:
            break
        fresh = [process for process in found if process.pid not in seen]
        seen.update(process.pid for process in fresh)
        if passed_s >= gentle_s:
            send(signal.SIGKILL, (process.pid for process in found))
        else:
            send(signal.SIGTERM, (process.pid for process in fresh if process.group not in asked_groups))
        time.sleep(0.02)
    return len(seen)


def send(signal_number: int, pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal_number)


def reap() -> dict[int, int]:
    """Exit statuses of children that have exited, by pid. Raises nothing when there are no children."""
    ended: dict[int, int] = {}
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            ended[pid] = status
    return ended


def has_children() -> bool:
    """With orphans adopted, no children means no descendants at all."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def catches(pid: int, signal_number: int) -> bool:
    """Whether the process has a handler for the signal. False where the system does not report it."""
    try:
        status = (_PROC / str(pid) / "status").read_text()
    except OSError:
        return False
    caught = next((line for line in status.splitlines() if line.startswith("SigCgt:")), "SigCgt: 0")
    return bool(int(caught.split()[1], 16) >> (signal_number - 1) & 1)


def heads(roots: Iterable[int], launchers: Iterable[int]) -> list[int]:
    """The scripts themselves: what `roots` have become or started, below shells and launchers, but not their workers.

    Signals for scripts go only to these. Sent to a data loader worker or a launcher, they would end the training.
    """
    alive = {process.pid: process for process in look("")}
    waiting, found = [alive[pid] for pid in roots if pid in alive], []
    while waiting:
        process = waiting.pop()
        if process.name in _STARTERS or process.pid in launchers:
            waiting += [child for child in alive.values() if child.parent == process.pid]
        else:
            found.append(process.pid)
    return found


_SHELLS = ("sh", "bash", "dash", "ash", "zsh", "ksh", "busybox")
_STARTERS = (*_SHELLS, "mpirun", "orterun", "orted", "prterun", "prted")


def look(key: str) -> list[FamilyProcess]:
    """Every live process that this user may see."""
    return _look_in_proc(key) if (_PROC / "self" / "stat").exists() else _look_with_ps(key)


def _look_in_proc(key: str) -> list[FamilyProcess]:
    mark = f"{MARK}={key}".encode()
    found: dict[int, FamilyProcess] = {}
    for name in os.listdir(_PROC):  # noqa: PTH208  # thousands of them
        if name.isdigit():
            with suppress(OSError):
                stat = (_PROC / name / "stat").read_text(errors="replace")
                comm, _, rest = stat.partition("(")[2].rpartition(") ")  # the name may hold anything
                state, parent, group = rest.split(maxsplit=3)[:3]
                if state not in "ZX":
                    marked, standin = _read_environment(name, mark)
                    found[int(name)] = FamilyProcess(int(name), int(parent), int(group), comm, marked, standin)
    return [_as_child(one, found) for one in found.values()]


def _as_child(process: FamilyProcess, alive: Mapping[int, FamilyProcess]) -> FamilyProcess:
    """The first process of a rank in a container, and orphans there, are children of what stands in for the rank: their
    real parents belong to the engine."""
    parent = alive.get(process.parent)
    if not process.standin or process.standin in (process.pid, process.parent) or process.standin not in alive:
        return process
    return process if parent and parent.standin == process.standin else replace(process, parent=process.standin)


def _read_environment(pid: str, mark: bytes) -> tuple[bool, int]:
    """Whether the process has the mark, and its stand-in."""
    try:
        variables = (_PROC / pid / "environ").read_bytes()
    except OSError:  # another user's
        return False, 0
    marked = mark in variables and mark in variables.split(b"\0")
    if _STANDIN not in variables:
        return marked, 0
    value = next((one[len(_STANDIN) :] for one in variables.split(b"\0") if one.startswith(_STANDIN)), b"")
    return marked, int(value) if value.isdigit() else 0


_STANDIN = f"{STANDIN}=".encode()


def groups_inside(group: int) -> set[int]:
    """The process groups in containers that processes of this group stand in for."""
    alive = look("")
    outside = {process.pid for process in alive if process.group == group}
    return {process.group for process in alive if process.standin in outside and process.group != group}


def still_inside(standin: int) -> bool:
    """What this process stood in for in a container is alive. Its parent is outside; that of an orphan is inside."""
    alive = look("")
    return any(one.standin == standin and space(one.pid) != space(one.parent) for one in alive)


def space(pid: int) -> str:
    """Its pid namespace; empty where that is another user's secret."""
    try:
        return str((_PROC / str(pid) / "ns" / "pid").readlink())
    except OSError:
        return ""


def _look_with_ps(key: str) -> list[FamilyProcess]:
    """`-E` shows the environment after the command, for this user's processes."""
    import subprocess  # here, because it is slow to import and Linux does not need it

    columns = ["ps", "-axwwE", "-o", "pid=,ppid=,pgid=,stat=,command="]
    found = []
    for line in subprocess.run(columns, capture_output=True, text=True, errors="replace").stdout.splitlines():
        pid, parent, group, state, *command = line.split()
        if not state.startswith("Z"):
            name = command[0].rpartition("/")[2] if command else ""
            found.append(FamilyProcess(int(pid), int(parent), int(group), name, f"{MARK}={key}" in command))
    return found


def _ancestors(alive: list[FamilyProcess]) -> set[int]:
    """This process and its ancestors: a run started from inside a run must not kill itself."""
    parents = {process.pid: process.parent for process in alive}
    line = {os.getpid()}
    pid = os.getpid()
    while (pid := parents.get(pid, 0)) and pid not in line:
        line.add(pid)
    return line


# Waiting for input.


def readable(fds: Iterable[int], seconds: float) -> list[int]:
    """Those that become readable in time. Not by `select`, which supports only file descriptors below 1,024: the agent
    may hold thousands open."""
    waiting = select.poll()
    for fd in fds:
        waiting.register(fd, select.POLLIN)
    return [fd for fd, _ in waiting.poll(seconds * 1000)]


# CPU priority before an eviction: the agent has seconds, and needs little CPU.
#
# A script may run far more threads than its node has CPUs, and an agent among them gets one share of many. Only a
# privileged agent, such as that of a cloud VM, may raise its priority; any other keeps its share.

AHEAD = -15  # a `nice` value
_SELF = Path("/proc/self")


class CpuPriority:
    """Of all threads of this process: each may hold a lock that another needs. The script keeps its own priority."""

    def __init__(self) -> None:
        self._usual: int | None = None  # while the priority is raised

    def raise_(self) -> None:
        if self._usual is None:
            self._usual = os.getpriority(os.PRIO_PROCESS, 0)
            _set(AHEAD)

    def restore(self) -> None:
        if self._usual is not None:
            _set(self._usual)
            self._usual = None


def _set(nice: int) -> None:
    try:
        threads = [int(one.name) for one in (_SELF / "task").iterdir()]
    except OSError:  # not Linux
        return
    for thread in threads:
        with suppress(OSError):  # not permitted, or exited
            os.setpriority(os.PRIO_PROCESS, thread, nice)
    with suppress(OSError):  # with autogroups, priorities count only within a session
        (_SELF / "autogroup").write_text(str(nice))


UNSHIPPED = 3  # the exit code
AGENT_S = 5.0  # for the kernel to end an agent after SIGKILL
SPOOLERS_S = 1.0  # for the last output to reach the spool


def end(folder: NodeFolder, key: str, variables: Mapping[str, str]) -> int:
    """Stops every process of the node, uploads their output, and clears the folder. 1 if some processes remain, and
    `UNSHIPPED` if the store is unreachable: then the output is kept, and the call must be repeated.

    Harmless when there is nothing left, and when the agent is alive after all: then only processes are touched.
    """
    _end_agent(folder)
    end_all(key)
    if folder.container.exists():
        from stoker.agent.container.container import clear_container  # here, because few runs have one

        clear_container(folder)
    with _locked(folder) as alone:
        if alone:
            release_data(folder)
            try:
                ship_logs(folder, variables)
            except StoreUnavailable:
                return UNSHIPPED
            except (StokerError, OSError, ValueError, KeyError, TypeError):
                pass  # best effort
            folder.clear()
            folder.access.unlink(missing_ok=True)
    return 1 if belonging_to(key) else 0


def release_data(folder: NodeFolder) -> None:
    """Unmounts everything, and allows the cache to evict what the node used."""
    if folder.data.is_symlink():
        from stoker.agent.data.cache import remove_hold  # here, because few runs have inputs

        remove_hold(folder.data.readlink())
        folder.data.unlink()


def _end_agent(folder: NodeFolder) -> None:
    """An agent that still holds the lock is the one that the errand names, or will name in a moment. A forked agent
    does not carry the mark itself."""
    until = time.monotonic() + AGENT_S
    while time.monotonic() < until:
        with _locked(folder) as alone:
            if alone:
                return
        with suppress(OSError, ValueError, KeyError):
            os.kill(int(json.loads(folder.errand.read_bytes())["agent"]), signal.SIGKILL)
        time.sleep(0.005)


def ship_logs(folder: NodeFolder, variables: Mapping[str, str]) -> None:
    """From the beginning: appending skips what is already there. Not without the secrets to mask."""
    errand = json.loads(folder.errand.read_bytes())
    store = _store(folder, errand["store"])
    orders = load(Orders, unverified(store.get(errand["orders"])))
    if any(name not in variables for name in errand["secrets"]):
        return
    masking = Masking(variables[name] for name in errand["secrets"])
    _wait_until_quiet(folder)
    for spool in folder.spool.glob("*.log"):
        log = RankLog(store, orders, folder, int(spool.stem))
        while log.ship(masking, final=True):
            pass


def _store(folder: NodeFolder, url: str) -> Store:
    if not folder.access.exists():
        return FolderStore.from_url(url)
    from stoker.stores.access import Access  # a folder needs no HTTP
    from stoker.stores.opening import open_access

    return open_access(Access.from_text(folder.access.read_text()))


def _wait_until_quiet(folder: NodeFolder) -> None:
    """`cat` exits by itself when the last process that could print is gone; it has no mark, so it is not seen."""
    until, before = time.monotonic() + SPOOLERS_S, -1
    while time.monotonic() < until:
        size = sum(spool.stat().st_size for spool in folder.spool.glob("*.log"))
        if size == before:
            return
        before = size
        time.sleep(0.05)


@contextmanager
def _locked(folder: NodeFolder) -> Iterator[bool]:
    if not folder.lock.exists():
        yield True
        return
    lock = claim(folder.lock)
    try:
        yield lock is not None
    finally:
        if lock is not None:
            os.close(lock)
