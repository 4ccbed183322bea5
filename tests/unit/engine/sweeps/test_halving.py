"""Successive halving as a pure decision: who resumes, who stops, and what a whole search costs."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.engine.offers.market import needs
from stoker.engine.rounds import Scene, decide
from stoker.engine.sweeps.budget import PastTrials, SweepFacts, at_rungs, beyond
from stoker.engine.sweeps.searching import (
    Contender,
    Verb,
    decided,
    ladder,
    paused,
    rung_of,
    scored,
    settled,
    unmeasured,
)
from stoker.errors import JobInvalid
from stoker.model.cause import Cause
from stoker.model.job.job import Job
from stoker.model.job.search import ProgressUnit, Search, SearchKind, Trial
from stoker.model.node import Offer
from stoker.model.run.report import MetricSummary
from stoker.model.run.run import Run, RunState, Submission
from stoker.model.run.sweep import Sweep

Make = Callable[..., Run]
SEARCH = Search(by=SearchKind.HALVING, metric="val_acc", most=27)


class Simulated:
    """Trials that reach their rungs one by one, in any order, and that fail or not; the server may end at any time."""

    def __init__(self, search: Search, scores: Sequence[float | None], fails: set[int], limit: int, seed: int) -> None:
        self.search, self.trials, self.limit = search, len(scores), limit
        self._scores, self._fails, self._chance = scores, fails, random.Random(seed)
        self.open = {str(at): Contender(str(at), at) for at in range(len(scores))}
        self.done: list[int] = []
        self.cost, self.most_at_once, self.resumed = 0, 0, dict[int, int]()

    def run(self) -> None:
        while self.open:
            going = [one for one in self.open.values() if not one.paused][: self.limit]
            self.most_at_once = max(self.most_at_once, len(going))
            if going:
                self._reach(self._chance.choice(going))
            told = decided(self.search, self.trials, list(self.open.values()))
            assert told or going, "nothing works, and nothing is decided"
            if self._chance.random() < 0.3:
                told = told[: self._chance.randint(0, len(told))]  # the server ended after the first few
            for verdict in told:
                one = self.open[verdict.id]
                if verdict.verb is Verb.STOP:
                    del self.open[verdict.id]
                else:
                    self.resumed[one.rung] = self.resumed.get(one.rung, 0) + 1
                    self.open[verdict.id] = replace(one, rung=one.rung + 1)

    def _reach(self, one: Contender) -> None:
        rungs = self.search.rungs
        self.cost += rungs[one.rung] - (rungs[one.rung - 1] if one.rung else 0)
        if one.number in self._fails:
            del self.open[one.id]
        elif one.rung == len(rungs) - 1:
            self.done.append(one.number)
            del self.open[one.id]
        else:
            self.open[one.id] = replace(one, scores=(*one.scores, self._scores[one.number]))


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.none() | st.floats(-10, 10) | st.just(0.5), min_size=1, max_size=40),
    st.sets(st.integers(0, 39), max_size=20),
    st.integers(1, 8),
    st.integers(2, 4),
    st.booleans(),
    st.integers(0, 1000),
)
def test_the_best_of_each_rung_resume_whatever_fails_and_whenever_the_server_ends(
    scores: list[float | None], fails: set[int], limit: int, eta: int, lower: bool, seed: int
) -> None:
    search = Search(by=SearchKind.HALVING, metric="-loss" if lower else "val_acc", most=20, eta=eta)
    one = Simulated(search, scores, fails, limit, seed)
    one.run()
    assert one.most_at_once <= limit
    for rung, count in one.resumed.items():
        assert count <= search.kept(len(scores), rung)
    good = [at for at in range(len(scores)) if at not in fails]
    assert bool(one.done) == bool(good)

    def order(at: int) -> tuple[float, int]:
        score = scores[at]
        return (float("inf") if score is None else score if lower else -score), at

    if good:  # the scores stay the same at each rung: the best one of all is complete
        assert min(good, key=order) in one.done
        assert sorted(one.done, key=order) == sorted(good, key=order)[: len(one.done)]


def test_the_best_of_64_is_found_for_less_than_a_quarter_of_the_cost() -> None:
    chance = random.Random(1)
    scores = [chance.random() for _ in range(64)]
    one = Simulated(SEARCH, scores, set(), 4, 2)
    one.run()
    assert SEARCH.rungs == (1, 3, 9, 27) and one.resumed == {0: 21, 1: 7, 2: 2}
    assert max(range(64), key=scores.__getitem__) in one.done
    assert one.cost <= 64 * 27 / 4


def test_nothing_is_decided_while_a_trial_is_on_its_way_and_a_late_score_counts() -> None:
    search = replace(SEARCH, eta=2, most=4)
    there = [Contender("a", 1, 0, (0.5,)), Contender("b", 2, 0, (0.7,)), Contender("c", 3, 0, (None,))]
    assert decided(search, 4, [*there, Contender("d", 4)]) == []
    told = {one.id: one.verb for one in decided(search, 4, [*there, Contender("d", 4, 0, (0.6,))])}
    assert told == {"b": Verb.RESUME, "d": Verb.RESUME, "a": Verb.STOP, "c": Verb.STOP}
    equal = decided(search, 2, [Contender("b", 2, 0, (0.5,)), Contender("a", 1, 0, (0.5,))])
    assert [one.id for one in equal if one.verb is Verb.RESUME] == ["a"]


JOB = Job.read(
    {
        "name": "ants",
        "run": "true",
        "matrix": {"seed": "1..3"},
        "search": {"by": "halving", "metric": "val_acc", "most": 9},
        "max_parallel": 2,
    }
)


TRIALS = {"s1": 3}


def facts(now: datetime) -> SweepFacts:
    return SweepFacts({"s1": Sweep("s1", "ants-s1", 1, Submission("k", JOB, "c", "p"), "folder", now, 3, 2)})


def trial(make_run: Make, number: int, acc: float | None = None) -> Run:
    run = replace(make_run(number), trial=Trial("s1", number))
    run = replace(run, job=replace(run.job, search=JOB.search))
    return run if acc is None else replace(run, metrics={"val_acc": MetricSummary(acc, acc, acc, 1, 1.0)})


def test_a_trial_pauses_at_its_rung_and_holds_no_place_until_all_are_there(make_run: Make, now: datetime) -> None:
    first = paused(trial(make_run, 1, 0.5), now)
    assert first and first.run.state is RunState.QUEUED and first.run.cause == Cause.RUNG
    runs = [first.run, replace(trial(make_run, 2, 0.9), state=RunState.RUNNING), trial(make_run, 3)]
    assert list(settled(runs, TRIALS, now)) == []
    assert at_rungs(runs) == {runs[0].id} and beyond(runs, facts(now)) == set()  # the third one may start

    there = [
        first.run,
        *(one.run for run in (trial(make_run, 2, 0.9), trial(make_run, 3, 0.1)) if (one := paused(run, now))),
    ]
    after = {one.run.trial.number: one.run for one in settled(there, TRIALS, now) if one.run.trial}
    assert [after[number].cause for number in (1, 2, 3)] == [Cause.NOT_RESUMED, "", Cause.NOT_RESUMED]
    assert after[2].state is RunState.QUEUED and (rung := rung_of(after[2])) and rung.at == 3
    assert [one.reached for one in ladder(SEARCH, list(after.values()))] == [3, 0, 0, 0]
    assert next(ladder(SEARCH, list(after.values()))).best == after[2].name

    last = replace(trial(make_run, 4, 0.9), trial=Trial("s1", 4, rung=2, scores=(0.1, 0.2)))
    assert paused(last, now) is None  # it is complete
    assert (done := scored(last).trial) and done.scores == (0.1, 0.2, 0.9)


def test_what_resumes_is_paid_from_the_one_budget_of_the_sweep(make_run: Make, now: datetime) -> None:
    runs = [
        replace(one, job=replace(one.job, on="cloud")) for at in (1, 2, 3) for one in [trial(make_run, at, at / 10)]
    ]
    runs = [one.run for run in runs if (one := paused(run, now))]
    offer = Offer("cloud", "small", "here", Decimal(36), ready_s=10, release_s=20)  # a cent each second
    market = {("cloud", need): [offer] for need in needs(runs[0].job)}

    def decided_with(usd: str, spent: str) -> dict[int, Run]:
        known = {"s1": replace(facts(now).known["s1"], budget=Decimal(usd))}
        scene = Scene({"cloud": None}, now, market, sweeps=SweepFacts(known, {"s1": PastTrials(Decimal(spent))}))
        after = {run.id: run for run in runs} | {one.run.id: one.run for one in decide(runs, {}, scene)}
        return {run.trial.number: run for run in after.values() if run.trial}

    rich, poor = decided_with("9", "1"), decided_with("9", "8.90")
    assert [rich[at].state for at in (1, 2, 3)] == [RunState.CANCELLED, RunState.CANCELLED, RunState.STARTING]
    assert [poor[at].state for at in (1, 2, 3)] == [RunState.CANCELLED, RunState.CANCELLED, RunState.PAUSED]
    assert "sweep budget ants-s1" in poor[3].hint and (rung := rung_of(poor[3])) and rung.at == 3


def test_a_metric_that_is_never_reported_ends_the_search_in_words(make_run: Make, now: datetime) -> None:
    blind = replace(trial(make_run, 1), metrics={"val_loss": MetricSummary(1, 1, 1, 1, 1.0)})
    assert "`val_acc`" in unmeasured(blind) and "`val_loss`" in unmeasured(blind)
    assert "`epoch`" in unmeasured(replace(blind, metrics={"val_acc": MetricSummary(1, 1, 1, 1)}))
    assert unmeasured(trial(make_run, 1, 0.5)) == "" and unmeasured(make_run(1)) == ""
    failed = replace(blind, state=RunState.FAILED, reason=unmeasured(blind), cause=Cause.METRIC_MISSING)
    working = replace(trial(make_run, 2), state=RunState.RUNNING)
    (ended,) = settled([failed, working, trial(make_run, 3)], TRIALS, now)
    assert ended.run.state is RunState.CANCELLED and "val_acc" in ended.run.reason


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"least": 9}, "search.most"),
        ({"metric": "a b"}, "search.metric"),
        ({"unit": "epochs"}, "search.unit"),
        ({"eta": 1}, "search.eta"),
        ({"rungs": 3}, "search.rungs"),
        ({"by": "asha"}, "search.by"),
        ({"by": "optuna"}, "search.most"),
        ({"most": None}, "search.most"),
        ({"sampler": "gp"}, "search.sampler"),
        ({"by": "optuna", "most": None, "sampler": "cmaes"}, "search.sampler"),
    ],
)
def test_a_search_that_cannot_work_is_refused(change: dict[str, object], field: str) -> None:
    given = {**JOB.plain(), "search": {"by": "halving", "metric": "val_acc", "most": 9, **change}}
    with pytest.raises(JobInvalid) as error:
        Job.read(given)
    assert [one.field for one in error.value.problems] == [field]
    with pytest.raises(JobInvalid) as error:
        Job.read({**JOB.plain(), "stop_when": "val_acc >= 0.9"})
    assert [one.field for one in error.value.problems] == ["stop_when"]


def test_progress_is_the_number_beside_the_metric() -> None:
    epoch, step = SEARCH.rung(1), replace(SEARCH, unit=ProgressUnit.STEP).rung(1)
    assert epoch.measured({"loss": 1.0}, 400) is None  # a batch
    assert epoch.measured({"val_acc": 0.5, "epoch": 3}, 400) == 3 and epoch.measured({"val_acc": 0.5}, 3) == 3
    assert step.measured({"val_acc": 0.5, "epoch": 3}, 400) == 400 and step.measured({"val_acc": 0.5}, None) is None
    assert epoch.reached_by(3) and not epoch.reached_by(2)
