"""The thread that notices when no rank of this node makes progress, and then reports where each of them is.

Progress is a line of output, a metric, a checkpoint, or CPU time. A rank that waits in a collective operation may burn
CPU time all the while (MPI and NCCL do), so with several ranks CPU time counts only if the rank's stack is elsewhere.

The processes of each rank: which they are, what CPU time they have used, and what the kernel says of one.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from stoker.agent.processes import family
from stoker.agent.processes.family import FamilyProcess
from stoker.model.run.stacks import RankStacks, Standstill, collective

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


BUSY_SHARE = 0.05  # of one CPU: what helper threads of an idle script use stays below
LOOKS = 10  # in the time that a script may be quiet
LONGEST_PAUSE_S = 5.0
SHORTEST_PAUSE_S = 0.2
LAST_S = 2.0  # for which the end of the script waits, where stacks are being taken
SAMPLES = 8  # of the stacks of busy ranks, in the same time

Processes = Mapping[int, Sequence[int]]  # by rank
Taker = Callable[[Processes], tuple[RankStacks, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """What a doctor looks at. `marks` changes with every sign of progress; `at_rest`: the script is not expected to
    make any, as after its last save before an eviction."""

    processes: Callable[[], Processes]
    marks: Callable[[], object]
    at_rest: Callable[[], bool]
    take: Taker
    ended: Callable[[], tuple[RankStacks, ...]] = tuple  # ranks that the others may wait for
    cpu_s: Callable[[Sequence[int]], float] = cpu_s


class HangDoctor:
    """`say` gets a standstill, and None once it is over. `alone`: the run has one rank, which waits for no other."""

    def __init__(
        self, after_s: float, watched: Watched, say: Callable[[Standstill | None], None], *, alone: bool
    ) -> None:
        self._after_s, self._watched, self._say, self._alone = after_s, watched, say, alone
        self._pause_s = max(min(after_s / LOOKS, LONGEST_PAUSE_S), SHORTEST_PAUSE_S)
        self._moved_at = self._looked_at = self._sampled_at = 0.0
        self._marks: object = None
        self._cpu: dict[int, float] = {}
        self._busy: set[int] = set()  # ranks that have used CPU time since the last sample
        self._told = False
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hang", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        self._done.set()
        if self._thread.is_alive():
            self._thread.join(LAST_S)

    def _run(self) -> None:
        self.look(time.monotonic())
        while not self._done.wait(self._pause_s):
            self.look(time.monotonic())

    def look(self, now: float) -> None:
        ranks, marks = self._watched.processes(), self._watched.marks()
        self._note_cpu(ranks, now)
        if marks != self._marks or not self._moved_at or self._watched.at_rest():
            self._marks = marks
            self._moved(now)
        elif self._busy and self._is_computing(ranks, now):
            self._moved(now)
        elif ranks and not self._told and now - self._moved_at >= self._after_s and not self._done.is_set():
            self._told = True
            taken = (*self._watched.take(ranks), *self._watched.ended())
            self._say(Standstill(datetime.now(UTC), round(now - self._moved_at, 1), taken))

    def _note_cpu(self, ranks: Processes, now: float) -> None:
        before, self._cpu = self._cpu, {rank: self._watched.cpu_s(pids) for rank, pids in ranks.items()}
        least_s = BUSY_SHARE * (now - self._looked_at)
        self._looked_at = now
        self._busy |= {rank for rank, used_s in self._cpu.items() if used_s - before.get(rank, used_s) >= least_s > 0}

    def _is_computing(self, ranks: Processes, now: float) -> bool:
        """Whether the CPU time of the busy ranks is progress. Looked at now and then: each sample interrupts them."""
        if self._alone:
            return True
        since = max(self._moved_at, self._sampled_at)
        due = not self._told and now - self._moved_at >= self._after_s
        if not due and now - since < self._after_s / SAMPLES:
            return False  # not known yet
        self._sampled_at = now
        busy, self._busy = self._busy, set()
        taken = self._watched.take({rank: ranks[rank] for rank in busy if rank in ranks})
        return any(not collective(one.frames) for one in taken)

    def _moved(self, now: float) -> None:
        self._moved_at, self._busy = now, set()
        if self._told:
            self._told = False
            self._say(None)
