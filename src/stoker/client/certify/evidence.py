"""When to evict, and the evidence that is collected: facts only, so that the verdict is a pure function."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from stoker.client.api.reading import Point
from stoker.client.certify.code import CodeLine, Trait
from stoker.client.certify.files import FileChange, FileFault
from stoker.model.job.sections import BESIDE
from stoker.model.snapshot import Entry, EntryKind

MOST_PER_RUN = 3
LONGEST_NOTICE_S = 5.0
SHORTEST_NOTICE_S = 1.0  # less is too little for a last commit on a busy computer
NOTICE_SHARE = 0.1  # of the work of the undisturbed run
EDGE = 0.05  # share of the training without evictions at both ends
START_SHARE = 0.1  # of a run that shows no sign: its start
LATE = 0.9
QUIET_S = 60.0


@dataclass(frozen=True, slots=True)
class Pace:
    """How the undisturbed run proceeded, so that others can be evicted by how far they are."""

    points: int = 0  # metrics that it reported
    printed: int = 0  # bytes; 0: nothing while it worked
    saved: float | None = None  # share of its work when its first checkpoint was committed; None: never, or unknown
    first_s: float | None = None  # until its first metric, or else its first output; None: there was none
    gap_s: float = 0.0  # the longest time without a sign of it

    @property
    def visible(self) -> bool:
        return bool(self.points or self.printed)

    @property
    def saves_late(self) -> bool:
        """Its first checkpoint comes when nearly everything is done, so no eviction can wait for it."""
        return self.saved is None or self.saved > LATE

    @property
    def quiet_s(self) -> float:
        """Without a sign for so long it will not end: a busy computer may need several times as long."""
        return QUIET_S + 5.0 * self.gap_s


@dataclass(frozen=True, slots=True)
class Victim:
    """One rank of a distributed run, or one node with all of its ranks, which is killed without a word."""

    node: int
    rank: int | None = None  # of all ranks; None: the node

    def __str__(self) -> str:
        return f"node {self.node}" if self.rank is None else f"rank {self.rank}"


@dataclass(frozen=True, slots=True)
class Moment:
    """One eviction. Its notice, or the eviction itself without notice, comes when the attempt has done its `share` of
    the training; if that cannot be observed, or is None, `after_s` seconds after its script has started."""

    after_s: float
    notice_s: float
    share: float | None = None
    victim: Victim | None = None  # None: all nodes
    hurried: bool = False  # earlier ones came too late: it does not wait for a checkpoint


def plan(chance: random.Random, ran_s: float, first_s: float, evictions: int) -> list[tuple[Moment, ...]]:
    """The evictions of each disturbed run, in order.

    `ran_s` is how long the undisturbed script ran, `first_s` when it reported its first step: before that it starts up,
    which every attempt has to repeat. At least every second eviction has a notice. One of three or more comes while the
    script starts up, when there is no checkpoint to resume from.
    """
    counts = [MOST_PER_RUN] * (evictions // MOST_PER_RUN) + [evictions % MOST_PER_RUN] * bool(evictions % MOST_PER_RUN)
    first_s = min(first_s, ran_s)
    work_s = ran_s - first_s
    notice_s = notice(work_s)
    runs, number = [], 0
    for index, count in enumerate(counts):
        cuts = sorted(chance.uniform(EDGE, 1 - EDGE) * work_s for _ in range(count))
        moments = []
        for before, cut in zip([0.0, *cuts], cuts, strict=False):
            warned = notice_s if number % 2 == 0 else 0.0
            begin_s = max(cut - before - warned, 0.0)
            moments.append(Moment(first_s + begin_s, warned, begin_s / work_s if work_s else None))
            number += 1
        if evictions >= MOST_PER_RUN and index == len(counts) - 1:
            moments[-1 if count == 1 else 0] = Moment(chance.uniform(0.0, first_s + EDGE * work_s), 0.0)
        runs.append(tuple(moments))
    return runs


def sooner(planned: tuple[Moment, ...], late: int) -> tuple[Moment, ...]:
    """The same evictions, after so many more that took effect when the work was done than before the first checkpoint:
    earlier, then without notice, since a busy computer may need longer for a notice than the script for its work."""
    if late <= 0:
        return planned
    if late > 1:
        return tuple(replace(one, notice_s=0.0, hurried=True) for one in planned)
    return tuple(
        replace(one, after_s=one.after_s / 2, share=one.share and one.share / 2, hurried=True) for one in planned
    )


def notice(work_s: float) -> float:
    """Long enough to be useful, short enough to end within the training."""
    return round(min(max(NOTICE_SHARE * work_s, SHORTEST_NOTICE_S), LONGEST_NOTICE_S), 1)


def limit_s(expected_s: float) -> float:
    """All runs with evictions together may take so long, then the verdict is on what was seen: the computer may be
    several times as busy as during the undisturbed run."""
    return 120.0 + 4.0 * expected_s


def wanted(share: float, usual: Pace, done: float, *, saved: bool = True) -> float:
    """The share of the training that an attempt is to do before its eviction, if earlier ones did `done`: until there
    is a checkpoint where that comes early, and at most half of what is left, because evictions may come later than
    planned."""
    least = 1.0 / usual.points if usual.points else 0.0
    first = 0.0 if saved or usual.saves_late else usual.saved or 0.0
    return max(min(max(share, first), max(1.0 - done, 0.0) / 2), least)


# What a certification cannot decide, checked before it spends time. Pure.

_LEAST_S = 1.0  # a shorter script ends before it can be evicted


def unseeded(code: Iterable[CodeLine]) -> str:
    """Why two undisturbed runs will probably differ; empty if nothing indicates that."""
    first = {line.trait: line for line in reversed(list(code))}
    drawn = first.get(Trait.SHUFFLES) or first.get(Trait.DRAWS)
    if drawn is None or not drawn.line or Trait.SEEDS in first:
        return ""
    return f"no line of the script sets a seed, and {drawn.file}:{drawn.line} draws random numbers: `{drawn.text}`"


def too_short(ran_s: float) -> bool:
    return ran_s < _LEAST_S


def expected_s(ran_s: float, took_s: float, evictions: int) -> float:
    """How long the runs with evictions take, roughly: each eviction costs a start and, without notice, half an
    interval."""
    start_s = max(took_s - ran_s, 0.5)
    runs = 1 + (evictions + 1) // 3
    return runs * took_s + evictions * (start_s + 0.25 * ran_s)


# Reported every few seconds, at whatever step, and derived from the step.
HOW_FAR = frozenset(["progress", "total_steps", "total_epochs"])
Series = tuple[tuple[float | None, float | None], ...]  # steps and values of one metric, in the order of reporting


def reported_series(points: Iterable[Point]) -> dict[int, dict[str, Series]]:
    """By attempt and metric, without pure progress counters."""
    found: dict[int, dict[str, list[tuple[float | None, float | None]]]] = {}
    for point in points:
        for name, value in point.values.items():
            if name not in HOW_FAR:
                named = name if point.rank == 0 else f"{name} of rank {point.rank}"
                found.setdefault(point.attempt, {}).setdefault(named, []).append((point.step, value))
    return {number: {name: tuple(steps) for name, steps in metrics.items()} for number, metrics in found.items()}


def told_steps(points: Iterable[Point]) -> dict[int, float]:
    """By attempt: the step that it first reported."""
    found: dict[int, float] = {}
    for point in points:
        if point.step is not None and HOW_FAR & point.values.keys():
            found.setdefault(point.attempt, point.step)
    return found


@dataclass(frozen=True, slots=True)
class AttemptTrace:
    """One attempt of one run."""

    series: Mapping[str, Series] = field(default_factory=dict)
    ran_s: float = 0.0
    restored: bool = False  # a checkpoint was restored before it started
    restored_step: float | None = None  # the last step reported before that checkpoint was committed
    saved: bool = False  # it committed a checkpoint of its own
    printed: int = 0  # bytes, by all ranks
    told_step: float | None = None  # the first step that it reported itself, in a metric that is not compared
    evicted: bool = False
    notice_s: float = 0.0  # of its eviction
    killed: str = ""  # the rank or node whose death was its end; empty: it was evicted as a whole


@dataclass(frozen=True, slots=True)
class Trace:
    """One run from start to end."""

    run: str
    attempts: tuple[AttemptTrace, ...]
    files: Mapping[str, str] = field(default_factory=dict)  # outputs: path to sha256
    succeeded: bool = True
    timed_out: bool = False  # it showed no sign for long, and was cancelled
    took_s: float = 0.0
    reason: str = ""
    exit_code: int | None = 0
    last_words: str = ""  # the end of the last attempt's log
    kept: Mapping[str, str] = field(default_factory=dict)  # its last checkpoint: path to sha256
    hook_words: tuple[str, ...] = ()  # messages of the hook of `exact: true` in its log

    @property
    def evictions(self) -> int:
        return sum(attempt.evicted for attempt in self.attempts)

    @property
    def ran_s(self) -> float:
        """How long the script itself ran, all attempts together."""
        return sum(attempt.ran_s for attempt in self.attempts)


@dataclass(frozen=True, slots=True)
class Evidence:
    """`files` are the outputs of disturbed runs that differ from the undisturbed run's; `control` is a second
    undisturbed run, made only if something differed."""

    undisturbed: Trace
    disturbed: tuple[Trace, ...] = ()
    files: tuple[FileChange, ...] = ()
    control: Trace | None = None
    control_files: tuple[FileChange, ...] = ()
    checkpoints: str = "checkpoints"  # the first of the job's folders
    outputs: str = "outputs"
    resume: str = ""  # arguments that would make the script resume, if the job has none; empty: unknown
    saved: tuple[str, ...] | None = None  # the files in the undisturbed run's checkpoint folders; None: unknown
    code: tuple[CodeLine, ...] = ()  # lines of the script that matter for resuming
    pace: Pace = Pace()  # of the undisturbed run
    unfinished: str = ""  # what the time limit has ended, in words; empty: nothing
    exact: bool | None = None  # the job sets `exact: true`; None: not possible, such as with MPI

    @property
    def evictions(self) -> int:
        return sum(trace.evictions for trace in self.disturbed)

    @property
    def restored(self) -> bool:
        """Some attempt had a checkpoint to resume from, and work left: without, evictions prove little."""
        attempts = (attempt for trace in self.disturbed for attempt in trace.attempts)
        steps = any(attempt.series for attempt in self.undisturbed.attempts)
        return any(one.restored and (one.series if steps else one.saved) for one in attempts)


_OURS = re.compile(r"(^|/)step-\d{9}(/|$)")  # `stoker.checkpoint` saves by the clock, and verifies itself
_SUFFIXES = (".pt", ".pth", ".tar", ".ckpt", ".bin", ".npz", ".npy", ".safetensors", ".json", ".csv")


def comparable(entries: Iterable[Entry], outputs: str) -> dict[str, str]:
    """Path to sha256, of files that the script wrote and that are not compared as outputs anyway."""
    return {
        one.path: one.sha256
        for one in entries
        if one.kind is EntryKind.FILE
        and one.sha256
        and not one.path.endswith(BESIDE)
        and not one.path.startswith(f"{outputs}/")
        and not _OURS.search(one.path)
    }


def changed(ours: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    """Those that both have, and whose numbers can be read. Which files exist, and what surrounds the numbers, may
    depend on when the script was interrupted."""
    same = sorted(path for path in ours.keys() & theirs.keys() if ours[path] != theirs[path])
    return [path for path in same if path.endswith(_SUFFIXES)]


def telling(change: FileChange) -> bool:
    return change.fault is FileFault.NUMBERS
