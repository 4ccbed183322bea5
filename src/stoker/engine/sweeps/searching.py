"""Carries a search out on the runs of a sweep: pauses, resumes and ends its trials.

Successive halving: trials pause at a rung; once all are there, the best resume, and the others are stopped for good.
Nothing here remembers anything: which rung a trial heads for, and its scores so far, are saved with its run. The same
facts give the same actions after any restart, and facts of which only a part was carried out give the rest.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from stoker.engine.decision import Decision, Land
from stoker.model.cause import Cause
from stoker.model.job.search import ProgressUnit, Rung, Search
from stoker.model.orders import Wish
from stoker.model.run.run import Run, RunState
from stoker.model.run.sweep import RungState


def rung_of(run: Run) -> Rung | None:
    """Where its next attempt pauses; None: nowhere."""
    search = run.job.search
    return search.rung(run.trial.rung) if search and search.rungs and run.trial else None


def scored(run: Run) -> Run:
    """It has reached the rung that it was heading for."""
    if run.job.search is None or run.trial is None or run.trial.paused:
        return run
    return replace(run, trial=replace(run.trial, scores=(*run.trial.scores, score_of(run.job.search, run))))


def paused(run: Run, now: datetime) -> Decision | None:
    """A trial that has saved and stopped at its rung; None: it is complete there, or in no search."""
    search, trial = run.job.search, run.trial
    if search is None or trial is None or trial.rung >= len(search.rungs) - 1:
        return None
    reason = f"paused at {_at(search, trial.rung)}, until all trials are there"
    after = replace(scored(run), state=RunState.QUEUED, reason=reason, cause=Cause.RUNG)
    text = f"reached {_at(search, trial.rung)} with {search.name} {_figure(score_of(search, run))}, and paused"
    return Decision(after).noting(now, "rung", text)


def settled(runs: Collection[Run], trials: Mapping[str, int], now: datetime) -> Iterator[Decision]:
    """For the trials of every search: which of the paused ones resume, and which have ended. `trials` is how many each
    sweep has, by its id."""
    searches: dict[str, list[Run]] = {}
    for run in runs:
        if run.trial and run.job.search and run.trial.sweep in trials:
            searches.setdefault(run.trial.sweep, []).append(run)
    for id, mine in searches.items():
        search = mine[0].job.search
        assert search is not None
        if any(run.trial and run.trial.paused for run in mine if not run.state.ended):
            yield from _settled(search, trials[id], mine, now)
        elif blind := next((run for run in mine if _is_blind(run)), None):
            yield from (_ended(run, f"{blind.name}: {blind.reason}", now) for run in mine if _is_untried(run))


def _settled(search: Search, trials: int, runs: Collection[Run], now: datetime) -> Iterator[Decision]:
    known = {run.id: run for run in runs if not run.state.ended and run.wish is Wish.GO_ON}
    facts = [
        Contender(id, run.trial.number, run.trial.rung, run.trial.scores) for id, run in known.items() if run.trial
    ]
    for verdict in decided(search, trials, facts):
        yield _carried_out(search, known[verdict.id], verdict, now)


def _carried_out(search: Search, run: Run, verdict: RungVerdict, now: datetime) -> Decision:
    trial = run.trial
    assert trial is not None
    where = f"place {verdict.place} of {verdict.of} at {_at(search, trial.rung)}, of which {verdict.kept} resume"
    if verdict.verb is Verb.STOP:
        return _ended(run, f"stopped: {where}", now)
    after = replace(run, trial=replace(trial, rung=trial.rung + 1))
    if run.cause == Cause.RUNG:
        after = replace(after, reason="", cause="")
    text = f"resumes for {_at(search, trial.rung + 1)}: {where}"
    return Decision(after).noting(now, "rung", text)


def _ended(run: Run, reason: str, now: datetime) -> Decision:
    ended = replace(
        run, state=RunState.CANCELLED, reason=reason, cause=Cause.NOT_RESUMED, ended_at=now, exit_code=0, hint=""
    )
    return Decision(ended, (Land(ended),) if ended.landing else ()).noting(now, "rung", reason)


def _is_blind(run: Run) -> bool:
    return run.state is RunState.FAILED and run.cause == Cause.METRIC_MISSING


def _is_untried(run: Run) -> bool:
    return run.state is RunState.QUEUED and not run.attempts


def _at(search: Search, rung: int) -> str:
    return f"{search.unit} {search.rungs[rung]} (rung {rung + 1} of {len(search.rungs)})"


def _figure(score: float | None) -> str:
    return "not a number" if score is None else f"{score:.6g}"


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
