"""Aligns the metrics of an evicted run with those of the undisturbed one: repeated, missing and differing steps."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from stoker.client.certify.evidence import AttemptTrace, Series, Trace

_COMPARED = 32  # values compared to choose among several possible positions
_FLEETING = re.compile(
    r"(?:^|[_/ .-])(?:time|seconds?|secs?|runtime|duration|elapsed|eta|speed|throughput|fps|memory|mem|timestamp)"
    r"(?:$|[_/ .-])|per_s(?:ec(?:ond)?)?(?:$|[_/])|_m?s$",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Stretch:
    """What one attempt reported for one metric. Positions count the undisturbed run's values from 0."""

    start: int | None  # position of its first value; None: it reported none, or none of the other run's
    end: int  # after its last value
    repeated: int  # values that an earlier attempt had already reported
    unknown: tuple[float | None, ...]  # steps that the undisturbed run does not have
    differing: tuple[tuple[int, float | None], ...]  # positions, and what was reported instead, in that order


@dataclass(frozen=True, slots=True)
class MetricReplay:
    """All attempts of one run, of one metric."""

    stretches: tuple[Stretch, ...]
    missing: tuple[int, ...]  # positions that no attempt reported


@dataclass(frozen=True, slots=True)
class MetricDifference:
    """Where and how much one metric of one run differs from the undisturbed one."""

    run: str
    metric: str
    attempt: int  # the first that differs, from 1
    step: float | None  # of the first difference
    expected: float | None
    found: float | None
    agreed: int  # values of that attempt that were the same before it
    count: int
    heals: bool  # later values of that attempt agree again
    first: float | None  # the undisturbed run's very first value
    largest: float  # absolute
    relative: float  # to the largest value of the undisturbed run
    largest_step: float | None


@dataclass(frozen=True, slots=True)
class Resume:
    """What one eviction caused, in steps."""

    run: str
    attempt: int  # the one evicted
    notice_s: float
    reached: float | None  # its last step; None: it had not reported one
    restored: bool
    kept: float | None  # the last step reported before the restored checkpoint; None: unknown
    went_on: float | None  # the first step afterwards
    started_over: bool
    repeated: int  # steps repeated because of it
    by_script: int  # of those, the ones between the checkpoint and where the script resumed
    killed: str = ""  # the rank or the node; empty: all nodes
    too_late: bool = False  # every step was done by then, and none was repeated: it proves nothing


def lasting(names: Iterable[str]) -> list[str]:
    """Metrics that can be reproducible: times and speeds are not."""
    return [name for name in names if not _FLEETING.search(name)]


def fleeting(names: Iterable[str]) -> list[str]:
    return [name for name in names if _FLEETING.search(name)]


def main_metric(trace: Trace) -> str:
    """The metric with the most steps; empty if the run reported none."""
    series = whole(trace)
    names = lasting(series) or list(series)
    return max(names, key=lambda name: len(series[name]), default="")


def whole(trace: Trace) -> Mapping[str, Series]:
    """The metrics of a run with one attempt; with several, what they reported in sequence."""
    names = dict.fromkeys(name for attempt in trace.attempts for name in attempt.series)
    return {name: tuple(one for attempt in trace.attempts for one in attempt.series.get(name, ())) for name in names}


def replay(reference: Series, attempts: Iterable[AttemptTrace], metric: str) -> MetricReplay:
    places: dict[float | None, list[int]] = {}
    for position, (step, _) in enumerate(reference):
        places.setdefault(step, []).append(position)
    done = bytearray(len(reference))
    stretches: list[Stretch] = []
    for attempt in attempts:
        stretches.append(_lay(reference, places, attempt.series.get(metric, ()), done))
    return MetricReplay(tuple(stretches), tuple(position for position, seen in enumerate(done) if not seen))


def differences(undisturbed: Trace, other: Trace) -> list[MetricDifference]:
    """Every comparable metric whose values are not identical, bit for bit."""
    ours, found = whole(undisturbed), []
    for metric in lasting(ours):
        if one := _difference(ours[metric], other, metric):
            found.append(one)
    return found


def resumes(undisturbed: Trace, other: Trace) -> list[Resume]:
    """One for each eviction."""
    metric = main_metric(undisturbed)
    reference = whole(undisturbed).get(metric, ())
    laid = replay(reference, other.attempts, metric).stretches
    found = []
    for index, (attempt, later) in enumerate(zip(other.attempts, other.attempts[1:], strict=False)):
        if not attempt.evicted:
            continue
        after = laid[index + 1]
        own, reached = laid[index].end, max(one.end for one in laid[: index + 1])
        kept_at = _behind(reference, later.restored_step)
        by_script = max(0, min(kept_at - after.start, after.repeated)) if kept_at and after.start is not None else 0
        went_on = reference[after.start][0] if after.start is not None and reference else None
        found.append(
            Resume(
                run=other.run,
                attempt=index + 1,
                notice_s=attempt.notice_s,
                reached=reference[own - 1][0] if own else None,
                restored=later.restored,
                kept=later.restored_step,
                went_on=went_on,
                started_over=after.start == 0 and reached > 0,
                repeated=after.repeated,
                by_script=by_script if later.restored else 0,
                killed=attempt.killed,
                too_late=_is_too_late(other.attempts[index + 1 :], len(reference), reached, after),
            )
        )
    return found


def _is_too_late(after: Sequence[AttemptTrace], steps: int, reached: int, stretch: Stretch) -> bool:
    """Without steps, an attempt that resumed and saved nothing new had nothing left to do."""
    if steps:
        return stretch.start is None and reached == steps
    return after[0].restored and not any(one.saved for one in after)


def _lay(reference: Series, places: Mapping[float | None, list[int]], piece: Series, done: bytearray) -> Stretch:
    reached = done.rfind(1) + 1
    cursor = _begin(reference, places, piece, reached)
    start: int | None = None
    repeated, unknown, differing = 0, [], []
    for step, value in piece:
        position = _next(places.get(step, []), cursor)
        if position is None:
            unknown.append(step)
            continue
        start = position if start is None else start
        repeated += done[position]
        done[position] = 1
        if not same(reference[position][1], value):
            differing.append((position, value))
        cursor = position + 1
    return Stretch(start, cursor if start is not None else 0, repeated, tuple(unknown), tuple(differing))


def _begin(reference: Series, places: Mapping[float | None, list[int]], piece: Series, reached: int) -> int:
    """Where the piece begins. Usually the steps tell; if many values share a step, as with epochs, the values do."""
    places_of_step = places.get(piece[0][0], []) if piece else []
    if len(places_of_step) < 2:
        return places_of_step[0] if places_of_step else 0
    candidates = [at for at in places_of_step if same(reference[at][1], piece[0][1])]
    if not candidates:
        return max((at for at in places_of_step if at <= reached), default=places_of_step[0])
    head = piece[:_COMPARED]

    def score(at: int) -> tuple[int, bool, int]:
        pairs = zip(reference[at : at + len(head)], head, strict=False)
        return sum(one[0] == two[0] and same(one[1], two[1]) for one, two in pairs), at <= reached, at

    return max(candidates, key=score)


def _next(positions: list[int], cursor: int) -> int | None:
    """The nearest position from the cursor on; the last before it if there is none."""
    if not positions:
        return None
    index = bisect_left(positions, cursor)
    return positions[min(index, len(positions) - 1)]


def same(one: float | None, other: float | None) -> bool:
    """None stands for NaN, and equals itself."""
    return one == other


def _difference(reference: Series, other: Trace, metric: str) -> MetricDifference | None:
    laid = replay(reference, other.attempts, metric)
    differing = [(index, one) for index, one in enumerate(laid.stretches) if one.differing]
    if not differing:
        return None
    index, stretch = differing[0]
    first, value = stretch.differing[0]
    every = [one for _, stretch in differing for one in stretch.differing]
    largest, at = max((_apart(reference[position][1], value), -position) for position, value in every)
    scale = max((abs(value) for _, value in reference if value is not None), default=0.0)
    return MetricDifference(
        run=other.run,
        metric=metric,
        attempt=index + 1,
        step=reference[first][0],
        expected=reference[first][1],
        found=value,
        agreed=first - (stretch.start or 0),
        count=len({position for position, _ in every}),
        heals=all(_heals(one) for _, one in differing),
        first=reference[0][1],
        largest=largest,
        relative=largest / scale if scale else float(largest > 0),
        largest_step=reference[-at][0],
    )


def _heals(stretch: Stretch) -> bool:
    """Only the first one or two values differ, and later ones agree."""
    return len(stretch.differing) <= 2 and stretch.end - 1 > stretch.differing[-1][0]


def _apart(one: float | None, other: float | None) -> float:
    if one is None or other is None:
        return 0.0 if one is other else float("inf")
    return abs(one - other)


def _behind(reference: Series, step: float | None) -> int:
    """The position after the last value up to a step; 0 if the step is unknown."""
    if step is None:
        return 0
    return sum(1 for one, _ in reference if one is not None and one <= step)
