"""The processes of each rank: which they are, what CPU time they have used, and what the kernel says of one."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from stoker.agent.processes import family
from stoker.agent.processes.family import FamilyProcess

PROC = Path("/proc")
# How launchers tell a process its rank, each in the environment that it starts with.
_NUMBERED = (b"RANK", b"OMPI_COMM_WORLD_RANK", b"PMIX_RANK", b"PMI_RANK")
_TICKS = 100.0  # of the kernel's clock in a second, on every Linux that agents run on
_STATES = {"R": "running", "S": "sleeping", "D": "waiting for a device", "T": "stopped", "t": "traced", "I": "idle"}
_CALLS = {  # numbers of x86_64
    0: "read", 1: "write", 7: "poll", 23: "select", 34: "pause", 35: "nanosleep", 42: "connect", 43: "accept",
    45: "recvfrom", 47: "recvmsg", 61: "wait4", 202: "futex", 230: "clock_nanosleep", 232: "epoll_wait",
    270: "pselect6", 271: "ppoll", 281: "epoll_pwait",
}  # fmt: skip


def by_rank(roots: Mapping[int, int], launchers: Collection[int]) -> dict[int, list[int]]:
    """The processes of each rank, parents before their children; a data loader's workers belong to their rank. `roots`
    are the processes that the agent has started, with their ranks. A launcher and its helpers belong to none."""
    children: dict[int, list[FamilyProcess]] = {}
    for one in family.look(""):
        children.setdefault(one.parent, []).append(one)
    found: dict[int, list[int]] = {}
    tops: dict[int, int | None] = {root: None if root in launchers else rank for root, rank in roots.items()}
    if launchers:  # which may leave processes to the agent, as daemons
        tops |= {one.pid: None for one in children.get(os.getpid(), []) if one.pid not in tops}
    for top, rank in tops.items():
        waiting = [(top, rank)]
        while waiting:
            pid, own = waiting.pop(0)
            number = own if own is not None or pid in launchers else _numbered(pid)
            if number is not None:
                found.setdefault(number, []).append(pid)
            waiting += [(one.pid, number) for one in children.get(pid, [])]
    return found


def _numbered(pid: int) -> int | None:
    try:
        variables = (PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return None
    given = dict(one.partition(b"=")[::2] for one in variables)
    return next((int(given[name]) for name in _NUMBERED if given.get(name, b"").isdigit()), None)


def cpu_s(pids: Sequence[int]) -> float:
    """Of these processes and of the children that they have waited for."""
    total = 0
    for pid in pids:
        with suppress(OSError, ValueError, IndexError):
            words = (PROC / str(pid) / "stat").read_text(errors="replace").rpartition(") ")[2].split()
            total += sum(int(word) for word in words[11:15])
    return total / _TICKS


def kernel_view(pid: int) -> str:
    """What a process is doing, without its cooperation: `python (process 12) is sleeping in futex, with 3 threads`."""
    top = PROC / str(pid)
    try:
        name, _, rest = (top / "stat").read_text(errors="replace").partition("(")[2].rpartition(") ")
        state = _STATES.get(rest[:1], f"in state {rest[:1]}")
        threads = len(os.listdir(top / "task"))  # noqa: PTH208  # only their number
    except OSError:
        return f"process {pid} has ended"
    where = _call(top) or _channel(top)
    inside = f" in {where}" if where else ""
    return f"{name} (process {pid}) is {state}{inside}, with {threads} {'thread' if threads == 1 else 'threads'}"


def _call(top: Path) -> str:
    with suppress(OSError, ValueError, IndexError):
        number = int((top / "syscall").read_text().split()[0])
        return _CALLS.get(number, f"system call {number}") if os.uname().machine == "x86_64" else ""
    return ""


def _channel(top: Path) -> str:
    with suppress(OSError):
        return (top / "wchan").read_text().strip("0\n")
    return ""
