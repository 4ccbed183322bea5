"""Carries a search out on the runs of a sweep: pauses, resumes and ends its trials."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from datetime import datetime

from stoker.engine.decision import Decision, Land
from stoker.engine.sweeps.halving import Contender, RungVerdict, Verb, decided, score_of
from stoker.model.cause import Cause
from stoker.model.job.search import Rung, Search
from stoker.model.orders import Wish
from stoker.model.run.run import Run, RunState


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
