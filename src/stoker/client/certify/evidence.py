"""The evidence of a certification: facts only, so that the verdict is a pure function; and how the last
checkpoint of one run compares with that of another."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from stoker.client.api.metrics import Point
from stoker.client.certify.code import CodeLine
from stoker.client.certify.files import FileChange, FileFault
from stoker.model.job.checkpointpaths import BESIDE
from stoker.model.snapshot import Entry, EntryKind

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
    told_step: float | None = None  # the first step that it reported itself, in a metric that is not compared
    evicted: bool = False
    notice_s: float = 0.0  # of its eviction


@dataclass(frozen=True, slots=True)
class Trace:
    """One run from start to end."""

    run: str
    attempts: tuple[AttemptTrace, ...]
    files: Mapping[str, str] = field(default_factory=dict)  # outputs: path to sha256
    succeeded: bool = True
    timed_out: bool = False  # it timed out and was cancelled
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
    exact: bool | None = None  # the job sets `exact: true`; None: not possible with several processes

    @property
    def evictions(self) -> int:
        return sum(trace.evictions for trace in self.disturbed)

    @property
    def restored(self) -> bool:
        """Some attempt had a checkpoint to resume from, and work left: without, evictions prove little."""
        attempts = (attempt for trace in self.disturbed for attempt in trace.attempts)
        steps = any(attempt.series for attempt in self.undisturbed.attempts)
        return any(one.restored and (one.series or not steps) for one in attempts)


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
