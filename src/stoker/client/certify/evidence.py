"""What a certification has seen: facts only, so that the verdict on them is a pure function."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from stoker.client.api.metrics import Point
from stoker.client.certify.code import CodeLine
from stoker.client.certify.files import FileChange

# Said every few seconds, at whatever step that is, and follows from the step.
HOW_FAR = frozenset(["progress", "total_steps", "total_epochs"])
Series = tuple[tuple[float | None, float | None], ...]  # steps and values of one metric, in the order of reporting


def reported_series(points: Iterable[Point]) -> dict[int, dict[str, Series]]:
    """By attempt and metric, without what only says how far a training is."""
    found: dict[int, dict[str, list[tuple[float | None, float | None]]]] = {}
    for point in points:
        for name, value in point.values.items():
            if name not in HOW_FAR:
                named = name if point.rank == 0 else f"{name} of rank {point.rank}"
                found.setdefault(point.attempt, {}).setdefault(named, []).append((point.step, value))
    return {number: {name: tuple(steps) for name, steps in metrics.items()} for number, metrics in found.items()}


def told_steps(points: Iterable[Point]) -> dict[int, float]:
    """By attempt: where it was when it first said how far it is."""
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
    restored: bool = False  # a checkpoint was put back before it began
    restored_step: float | None = None  # the last step reported before that checkpoint was kept
    told_step: float | None = None  # the first that it said itself to be at, by what is not compared
    evicted: bool = False
    notice_s: float = 0.0  # of its eviction


@dataclass(frozen=True, slots=True)
class Trace:
    """One run from its beginning to its end."""

    run: str
    attempts: tuple[AttemptTrace, ...]
    files: Mapping[str, str] = field(default_factory=dict)  # outputs: path to sha256
    succeeded: bool = True
    timed_out: bool = False  # it did not end in time and was cancelled
    took_s: float = 0.0
    reason: str = ""
    exit_code: int | None = 0
    last_words: str = ""  # the end of the last attempt's log
    kept: Mapping[str, str] = field(default_factory=dict)  # its last checkpoint: path to sha256
    hook_words: tuple[str, ...] = ()  # what the hook of `exact: true` said in its log

    @property
    def evictions(self) -> int:
        return sum(attempt.evicted for attempt in self.attempts)

    @property
    def ran_s(self) -> float:
        """How long the script itself ran, all attempts together."""
        return sum(attempt.ran_s for attempt in self.attempts)


@dataclass(frozen=True, slots=True)
class Evidence:
    """`files` are those of disturbed runs that differ from the undisturbed one's; `control` is a second undisturbed
    run, made only where something differed."""

    undisturbed: Trace
    disturbed: tuple[Trace, ...] = ()
    files: tuple[FileChange, ...] = ()
    control: Trace | None = None
    control_files: tuple[FileChange, ...] = ()
    checkpoints: str = "checkpoints"  # the first of the job's folders
    outputs: str = "outputs"
    resume: str = ""  # arguments that would make the script resume, where the job gives it none; empty: none are known
    saved: tuple[str, ...] | None = None  # what the undisturbed run left in its checkpoint folders; None: unknown
    code: tuple[CodeLine, ...] = ()  # lines of the script that bear on resuming
    exact: bool | None = None  # the job says `exact: true`; None: it cannot, having several processes

    @property
    def evictions(self) -> int:
        return sum(trace.evictions for trace in self.disturbed)

    @property
    def restored(self) -> bool:
        """Some attempt had a checkpoint to go on from: without one, evictions prove little."""
        return any(attempt.restored for trace in self.disturbed for attempt in trace.attempts)
