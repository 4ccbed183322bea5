"""Successive halving: trials pause at a rung; once all are there, the best resume, and the others are stopped for good.

Nothing here remembers anything: which rung a trial heads for, and its scores so far, are saved with its run. The same
facts give the same actions after any restart, and facts of which only a part was carried out give the rest.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from stoker.model.job.search import ProgressUnit, Search
from stoker.model.run.run import Run, RunState
from stoker.model.run.sweep import RungState


class Verb(StrEnum):
    RESUME = "resume"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Contender:
    """A trial that has not ended. It heads for `rung`, or is paused there if it has a score for it."""

    id: str
    number: int  # of the trial: of equals the first one is better
    rung: int = 0
    scores: tuple[float | None, ...] = ()  # by rung; None: what it reported is not a number

    @property
    def paused(self) -> bool:
        return len(self.scores) > self.rung


@dataclass(frozen=True, slots=True)
class RungVerdict:
    """What becomes of a paused trial: its place among `of` at its rung, of which `kept` resume."""

    id: str
    verb: Verb
    place: int
    of: int
    kept: int


def decided(search: Search, trials: int, open: Collection[Contender]) -> list[RungVerdict]:
    """`trials` is how many the search began with. Trials that have failed are missing among the open ones: others take
    their places. While one is still on its way to a rung, nothing is decided there."""
    found: list[RungVerdict] = []
    paused = [one for one in open if one.paused]
    for rung in sorted({one.rung for one in paused}):
        if any(one.rung <= rung and not one.paused for one in open):
            break
        there = sorted((one for one in paused if one.rung == rung), key=lambda one: _order(search, one))
        ahead = sum(one.rung > rung for one in open)  # resumed, and the server ended before it told the others
        kept = max(search.kept(trials, rung) - ahead, 0)
        for place, one in enumerate(there, 1):
            verb = Verb.RESUME if place <= kept else Verb.STOP
            found.append(RungVerdict(one.id, verb, place + ahead, len(there) + ahead, min(kept, len(there)) + ahead))
    return found


def _order(search: Search, one: Contender) -> tuple[float, int]:
    """Sorts the best first."""
    score = one.scores[one.rung]
    if score is None or math.isnan(score):
        return math.inf, one.number
    return (score if search.lower_is_better else -score), one.number


def score_of(search: Search, run: Run) -> float | None:
    """What it has reported last; None: that is not a number."""
    found = run.metrics.get(search.name)
    return found.last if found and math.isfinite(found.last) else None


def unmeasured(run: Run) -> str:
    """Why a search cannot decide about a trial, in words; empty: it can."""
    search, known = run.job.search, run.metrics
    if search is None:
        return ""
    if search.name not in known:
        names = ", ".join(f"`{name}`" for name in list(known)[:6])
        return f"the script has not reported `{search.name}`, which the search compares; " + (
            f"reported: {names}" if names else "it reported no metric"
        )
    if search.draws:
        return ""
    epochs = search.unit is ProgressUnit.EPOCH and "epoch" in known
    if known[search.name].step is None and not epochs:
        return f"the script reports `{search.name}` without `{search.unit}`, by which the search counts its progress"
    return ""


def ladder(search: Search, runs: Sequence[Run]) -> Iterator[RungState]:
    """How far a search is: every run of it, whether it has ended or not."""
    trials = [(run, run.trial) for run in runs if run.trial]
    for number, at in enumerate(search.rungs):
        heading = [(run, trial) for run, trial in trials if trial.rung >= number]
        there = [(run, trial) for run, trial in heading if len(trial.scores) > number]
        ordered = sorted(there, key=lambda one: _order(search, Contender("", one[1].number, number, one[1].scores)))
        best = ordered[0] if ordered else None
        yield RungState(
            at=at,
            heading=len(heading) - len(there),
            reached=len(there),
            resumed=sum(trial.rung > number for _, trial in there),
            failed=sum(run.state is RunState.FAILED for run, trial in heading if len(trial.scores) <= number),
            best=best[0].name if best else "",
            score=best[1].scores[number] if best else None,
        )
