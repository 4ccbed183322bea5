"""Which work of a run counts, and which was repeated: each attempt resumed from a checkpoint of an earlier one, and
the work after that checkpoint is lost.

The times of one attempt are all from its node's clock, and are compared only with each other. A script shows by its
counters what it repeats: they start below where they had been. Counters come from nodes: a value that does not rise, or
is not a number, is ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf

from stoker.model.run.report import Climb, Effort, Kept, Phase
from stoker.model.run.run import Attempt, Member, Run

ALL = float("inf")  # seconds of work: however many there were


@dataclass(frozen=True, slots=True)
class Loss:
    """What an attempt lost, in seconds of running, and where the run resumed."""

    seconds: float = 0.0
    went_on_from: Kept | None = None  # None: from scratch, unless nothing was lost
    again: str = ""  # where the script itself started over, below what it had reached


def losses(run: Run) -> Mapping[int, Loss]:
    """By number, of every attempt that has done something. `ALL` if nothing of it was saved.

    A script that starts over in spite of its checkpoint loses the work that it visibly repeats.
    """
    found = dict(_by_checkpoints(run))
    repeating = Repeating()
    for attempt in reversed([one for one in run.attempts if one.number in found]):
        loss = found[attempt.number]
        repeated = repeating.repeated(_effort(attempt))
        behind_s = repeated.seconds + unheard_s(attempt)
        if repeated.seconds and behind_s > loss.seconds:
            loss = found[attempt.number] = replace(loss, seconds=behind_s, again=repeated.again)
        if loss.seconds < _effort(attempt).running_s:
            repeating.counts(_effort(attempt))
        if undone_s := _effort(attempt).undone_s:  # on machines that its provider evicted and restored
            found[attempt.number] = replace(found[attempt.number], seconds=found[attempt.number].seconds + undone_s)
    return found


def _by_checkpoints(run: Run) -> Mapping[int, Loss]:
    workers = [one for one in run.attempts if one.effort is not None]
    if not workers:
        return {}
    newest = workers[-1]
    effort = _effort(newest)
    # A waiting run will resume from the newest checkpoint; one that is active, or has ended, loses nothing.
    waits = newest.state.over and not run.state.ended
    base = (effort.kept or effort.began_from) if waits else effort.began_from
    found: dict[int, Loss] = {} if waits else {newest.number: Loss()}
    for attempt in reversed(workers if waits else workers[:-1]):
        if base is not None and base.attempt > attempt.number:  # of an attempt of which nothing is known
            found[attempt.number] = Loss(0.0, base)
        elif base is None or base.attempt < attempt.number:
            found[attempt.number] = Loss(ALL, base)
        else:
            found[attempt.number] = Loss(_behind(attempt, base), base)
            base = _effort(attempt).began_from
    return found


def steps_lost(attempt: Attempt, loss: Loss) -> float | None:
    """None if the script reports no steps."""
    reached = attempt.effort.step if attempt.effort else None
    if reached is None or loss.again:
        return None
    if loss.went_on_from is None:
        return reached if loss.seconds else 0.0
    kept = loss.went_on_from.step
    return None if kept is None else max(reached - kept, 0.0)


def unheard_s(attempt: Member) -> float:
    """How long a node without a final report worked after its last report: until it was missed."""
    effort = attempt.effort
    if effort is None or effort.at_rest or attempt.outcome is not None or attempt.ended_at is None:
        return 0.0
    return max((attempt.ended_at - effort.at).total_seconds(), 0.0)


def _behind(attempt: Attempt, base: Kept) -> float:
    """Seconds of work after a checkpoint of the same attempt."""
    effort = _effort(attempt)
    if effort.kept and effort.kept.number == base.number:
        return effort.unsaved_s + unheard_s(attempt)
    saved_s = effort.phases.get(Phase.SAVING, 0.0)
    return max((effort.at - base.at).total_seconds() - saved_s + unheard_s(attempt), 0.0)


def _effort(attempt: Attempt) -> Effort:
    assert attempt.effort is not None
    return attempt.effort


_LEAST = 2  # values required to count as a counter
_LARGEST = 1e15  # larger values are not counters
_Curve = list[tuple[float, float]]  # seconds of running and values, both rising


@dataclass(frozen=True, slots=True)
class Repeated:
    """The end of an attempt's running that later attempts repeated; `inf` if that is all of it."""

    seconds: float = 0.0
    again: str = ""  # where they started, as the script counts


class Repeating:
    """Goes back from the newest attempt, and remembers the lowest start of those that count."""

    def __init__(self) -> None:
        self._began_at: dict[str, float] = {}

    def counts(self, effort: Effort) -> None:
        """Work of this attempt is part of the run."""
        for name, curve in _curves(effort, named=None).items():
            self._began_at[name] = min(self._began_at.get(name, inf), curve[0][1])

    def repeated(self, effort: Effort) -> Repeated:
        """Named counters decide before others. One that shows that the script resumed is trusted."""
        for named in (True, False):
            shared = {name: curve for name, curve in _curves(effort, named=named).items() if name in self._began_at}
            shown = [self._shown(name, curve, effort) for name, curve in shared.items() if len(curve) >= _LEAST]
            if shown:
                return min(shown, key=lambda one: one.seconds)
        return Repeated()

    def _shown(self, name: str, curve: _Curve, effort: Effort) -> Repeated:
        floor = self._began_at[name]
        if floor >= curve[-1][1]:
            return Repeated()
        again = f"{name.partition(' of ')[0] if name != '[]' else 'round'} {floor:g}"
        if floor <= curve[0][1]:
            return Repeated(inf, again)
        return Repeated(max(effort.running_s - _reached(curve, floor), 0.0), again)


def _curves(effort: Effort, *, named: bool | None) -> Mapping[str, _Curve]:
    """By name; invalid ones are skipped."""
    return {
        climb.name: list(zip(climb.seconds, climb.values, strict=True))
        for climb in effort.climbs
        if (named is None or climb.named is named) and _rises(climb)
    }


def _rises(climb: Climb) -> bool:
    figures = (*climb.seconds, *climb.values)
    if len(climb.seconds) != len(climb.values) or not climb.values:
        return False
    if not all(isinstance(one, int | float) and abs(one) <= _LARGEST for one in figures) or min(climb.seconds) < 0:
        return False
    rises = all(one < other for one, other in pairwise(climb.values))
    return rises and list(climb.seconds) == sorted(climb.seconds)


def _reached(curve: _Curve, value: float) -> float:
    """When the counter reached a value between its first and its last."""
    for (before_s, before), (after_s, after) in pairwise(curve):
        if before <= value <= after:
            return before_s + (after_s - before_s) * (value - before) / (after - before)
    return curve[-1][0]
