"""One budget for a sweep: never passed, and who has to stop first is worth least."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stoker.engine.money import meter
from stoker.engine.offers.market import needs
from stoker.engine.rounds import Scene, decide
from stoker.engine.sweeps.budget import PastTrials, SweepFacts, likely, promise, shares, sweep_allowances
from stoker.model.cause import Cause
from stoker.model.job.job import Job
from stoker.model.job.search import Trial
from stoker.model.node import Offer
from stoker.model.run.report import MetricSummary
from stoker.model.run.run import Run, RunState, Submission
from stoker.model.run.sweep import Sweep

Make = Callable[..., Run]
HOUR = Decimal(36)  # a cent each second
OFFER = Offer("cloud", "small", "here", HOUR, ready_s=10, release_s=20)
JOB = Job(name="ants", run="true", retention={"best": "acc"})  # type: ignore[arg-type]  # read as from a file


def sweep(now: datetime, budget: str) -> Sweep:
    return Sweep("s1", "ants-s1", 1, Submission("k", JOB, "c", "python"), "folder", now, budget=Decimal(budget))


def trial(make_run: Make, number: int, acc: float | None = None) -> Run:
    made = replace(make_run(number, job={"on": "cloud"}), trial=Trial("s1", number))
    return made if acc is None else replace(made, metrics={"acc": MetricSummary(acc, acc, acc, 1)})


def costing(run: Run, now: datetime, seconds: float) -> Run:
    return meter.asked(run, f"{run.id}-1", HOUR, now - timedelta(seconds=seconds))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 500), st.none() | st.floats(0, 1)), max_size=8),
    st.integers(0, 4),
    st.decimals(Decimal("0.5"), 50, places=2),
    st.lists(st.decimals(0, 5, places=2), max_size=4),
)
def test_trials_together_may_never_spend_more_than_is_left(
    make_run: Make,
    now: datetime,
    busy: list[tuple[int, float | None]],
    waiting: int,
    budget: Decimal,
    past: list[Decimal],
) -> None:
    runs = [costing(trial(make_run, at, acc), now, seconds) for at, (seconds, acc) in enumerate(busy, 1)]
    runs += [trial(make_run, 100 + at) for at in range(waiting)]
    runs = [replace(run, state=RunState.SUCCEEDED) if at % 4 == 3 else run for at, run in enumerate(runs)]
    before = PastTrials(sum(past, Decimal(0)), tuple(past))
    found = dict(shares(sweep(now, str(budget)), before, runs, now))
    left = budget - before.usd - sum((meter.spent(run, now) for run in runs), Decimal(0))
    more = {run.id: found[run.id].usd - meter.spent(run, now) for run in runs}
    working = [more[run.id] for run in runs if meter.rate(run)]
    assert sum(working, Decimal(0)) <= max(left, Decimal(0)) or left < 0
    for run in runs:
        if not meter.rate(run):
            assert more[run.id] <= max(left, Decimal(0))
            others = any(meter.rate(one) for one in runs)  # also one whose machine is not gone yet
            assert found[run.id].shared == others


def test_when_money_is_short_the_most_promising_trial_goes_on_and_the_least_promising_saves(
    make_run: Make, now: datetime
) -> None:
    """Each has cost a dollar, none has finished: what is left pays for another dollar of one of them."""
    runs = [costing(trial(make_run, at, acc), now, 100) for at, acc in ((1, 0.5), (2, 0.9), (3, 0.1))]
    found = dict(shares(sweep(now, "4.80"), PastTrials(), runs, now))
    more = {run.trial.number: found[run.id].usd - meter.spent(run, now) for run in runs if run.trial}
    assert more[2] > more[1] > more[3]
    assert more[2] >= 1  # as much again
    assert [run.trial.number for run in sorted(runs, key=lambda run: promise(sweep(now, "1"), run)) if run.trial] == [
        2,
        1,
        3,
    ]


def test_a_trial_starts_only_if_it_can_likely_finish_beside_those_that_work(make_run: Make, now: datetime) -> None:
    working, waiting = costing(trial(make_run, 1), now, 100), trial(make_run, 2)
    past = PastTrials(Decimal(4), (Decimal(2), Decimal(2)))
    rich, poor = (dict(shares(sweep(now, usd), past, [working, waiting], now)) for usd in ("9.00", "7.00"))
    assert rich[waiting.id].usd >= 2 and poor[waiting.id].usd == 0
    assert poor[working.id].usd == 3  # it gets everything: nobody else could use it


def test_the_machine_of_a_trial_that_has_ended_takes_nothing_from_the_one_that_works(
    make_run: Make, now: datetime
) -> None:
    """It is more promising than the other one by its metric, and its machine is not gone yet."""
    ended = replace(costing(trial(make_run, 1, 0.9), now, 200), state=RunState.SUCCEEDED)
    working = costing(trial(make_run, 2, 0.1), now, 10)
    found = dict(shares(sweep(now, "10"), PastTrials(), [ended, working], now))
    assert found[ended.id].usd < Decimal("2.50")
    assert found[working.id].usd > Decimal("7.50")


def test_what_a_trial_will_cost_is_what_earlier_ones_did() -> None:
    past = PastTrials(Decimal(6), (Decimal(2), Decimal(4)))
    assert likely(Decimal(1), past) == 2 and likely(Decimal(0), past) == 3
    assert likely(Decimal(5), past) == Decimal("1.5")  # longer than the others
    assert likely(Decimal(5), PastTrials()) == 5


def round_(runs: list[Run], facts: SweepFacts, now: datetime) -> list[Run]:
    market = {("cloud", need): [OFFER] for need in needs(runs[0].job)}
    decided = {one.run.id: one.run for one in decide(runs, {}, Scene({"cloud": None}, now, market, sweeps=facts))}
    return [decided.get(run.id, run) for run in runs]


def test_a_round_starts_what_the_budget_can_bring_to_an_end_and_the_rest_waits_for_it(
    make_run: Make, now: datetime
) -> None:
    """Each needs at least 43 cents: a dollar pays for two of them."""
    known = sweep(now, "1")
    facts = SweepFacts({"s1": known}, {"s1": PastTrials()})
    runs = round_([trial(make_run, number) for number in (1, 2, 3)], facts, now)
    assert [run.state for run in runs] == [RunState.STARTING, RunState.STARTING, RunState.QUEUED]
    assert runs[2].cause == Cause.BUDGET_SHARED

    spent = SweepFacts({"s1": known}, {"s1": PastTrials(Decimal("0.90"))})
    (last,) = round_([trial(make_run, 4)], spent, now)
    assert last.state is RunState.PAUSED and "sweep budget ants-s1" in last.hint  # nobody leaves it anything


def test_a_run_of_no_sweep_and_a_sweep_without_a_budget_have_no_allowance(make_run: Make, now: datetime) -> None:
    facts = SweepFacts({"s1": replace(sweep(now, "1"), budget=None)})
    assert sweep_allowances([make_run(1), trial(make_run, 2)], facts, now) == {}
