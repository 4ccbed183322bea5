"""The thread that notices when no rank of this node makes progress, and then reports where each of them is.

Progress is a line of output, a metric, a checkpoint, or CPU time. A rank that waits in a collective operation may burn
CPU time all the while (MPI and NCCL do), so with several ranks CPU time counts only if the rank's stack is elsewhere.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from stoker.agent.hang.processes import cpu_s
from stoker.model.run.stacks import RankStacks, Standstill, collective

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
            self._say(Standstill(datetime.now(UTC), round(now - self._moved_at, 1), self._watched.take(ranks)))

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
