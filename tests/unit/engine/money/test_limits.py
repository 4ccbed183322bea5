"""Limits of administrators: by day and month, of a person and of everybody, shared by the runs that cost money."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from stoker.engine.decision import StartNode
from stoker.engine.money import fuse, meter
from stoker.engine.money.spending import LimitFacts, allowances, exhausted, name, period, used
from stoker.engine.offers.market import needs
from stoker.engine.rounds import Scene, decide
from stoker.model.cause import Cause
from stoker.model.node import Offer
from stoker.model.run.money import IdleSpell, Limit, Period, Spell
from stoker.model.run.run import Run, RunState

Make = Callable[..., Run]
HOUR = Decimal("36")  # a cent each second
OFFER = Offer("cloud", "small", "here", HOUR, ready_s=10, release_s=20)
DAY = Limit(Period.DAY, Decimal(1))


def costing(run: Run, now: datetime, seconds: float, price: Decimal = HOUR) -> Run:
    return meter.asked(run, f"{run.id}-1", price, now - timedelta(seconds=seconds))


def test_a_day_and_a_month_begin_and_end_by_utc() -> None:
    now = datetime(2026, 12, 31, 23, 59, tzinfo=UTC)
    assert period(Period.DAY, now) == (datetime(2026, 12, 31, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC))
    assert period(Period.MONTH, now) == (datetime(2026, 12, 1, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC))


def test_what_is_left_of_a_limit_is_shared_by_the_runs_that_cost(make_run: Make, now: datetime) -> None:
    one, other = costing(make_run(1), now, 20), costing(make_run(2), now, 10, 3 * HOUR)
    allowed = allowances([one, other], LimitFacts((DAY,)), now)
    assert allowed[one.id].usd == Decimal("0.20") + Decimal("0.125")
    assert allowed[other.id].usd == Decimal("0.30") + Decimal("0.375")
    assert allowed[one.id].usd + allowed[other.id].usd == DAY.usd


def test_the_tightest_counts(make_run: Make, now: datetime) -> None:
    run = costing(make_run(person="anna", budget=Decimal("0.90")), now, 10)
    monthly, other = Limit(Period.MONTH, Decimal("0.80"), "anna"), Limit(Period.DAY, Decimal("0.01"), "ben")
    allowed = allowances([run], LimitFacts((DAY, monthly, other)), now)[run.id]
    assert (allowed.usd, allowed.whose) == (Decimal("0.80"), "anna's limit of $0.80 a month")
    assert allowed.again == datetime(2026, 4, 1, tzinfo=UTC)
    assert allowances([run], LimitFacts(()), now)[run.id].again is None


def test_runs_that_are_over_count_as_far_as_they_lie_in_the_period(make_run: Make, now: datetime) -> None:
    midnight = now.replace(hour=0)
    across = Spell("x-1", midnight - timedelta(seconds=50), midnight + timedelta(seconds=30), HOUR)
    before = Spell("y-1", midnight - timedelta(days=2), midnight - timedelta(days=1), HOUR)
    past = (("anna", across), ("ben", before))
    assert used(DAY, [make_run()], past, now) == Decimal("0.30")
    assert used(replace(DAY, person="ben"), [], past, now) == 0


def waiting(make_run: Make, number: int, **facts: object) -> Run:
    return make_run(number, job={"on": "cloud"}, **facts)


def round_(runs: list[Run], limits: LimitFacts, now: datetime) -> list[Run]:
    market = {("cloud", need): [OFFER] for need in needs(runs[0].job)}
    decided = {one.run.id: one for one in decide(runs, {}, Scene({"cloud": None}, now, market, limits))}
    for one in decided.values():
        assert all(action.fuse for action in one.actions if isinstance(action, StartNode))
    return [decided[run.id].run if run.id in decided else run for run in runs]


def test_a_limit_starts_as_many_runs_as_it_can_bring_to_their_end(make_run: Make, now: datetime) -> None:
    """Each needs at least 43 cents: a dollar pays for two of them."""
    runs = round_([waiting(make_run, number) for number in (1, 2, 3)], LimitFacts((DAY,)), now)
    assert [run.state for run in runs] == [RunState.STARTING, RunState.STARTING, RunState.QUEUED]
    assert runs[2].cause == Cause.UNAFFORDABLE and "$1.00 a day" in runs[2].reason
    assert "00:00 on 02 March UTC" in runs[2].reason


def test_a_new_day_lets_a_run_resume_by_itself(make_run: Make, now: datetime) -> None:
    spent = Spell("x-1", now - timedelta(seconds=90), now, HOUR)
    limits = LimitFacts((DAY,), (("", spent),))
    (held,) = round_([waiting(make_run, 1)], limits, now)
    assert held.state is RunState.QUEUED
    assert round_([held], limits, now + timedelta(minutes=5)) == [held], "nothing is written as long as nothing changes"
    (going,) = round_([held], limits, now + timedelta(hours=12))
    assert (going.state, going.reason) == (RunState.STARTING, "")


def test_a_run_stopped_for_a_limit_waits_and_is_not_paused(make_run: Make, now: datetime) -> None:
    allowance = fuse.Allowance(Decimal(1), name(DAY), now + timedelta(hours=12))
    held = fuse.paused(waiting(make_run, 1), allowance, now)
    assert held.run.state is RunState.QUEUED
    assert (
        held.run.reason
        == "the limit of everybody together of $1.00 a day is spent; it resumes at 00:00 on 02 March UTC"
    )


def idle(run: Run, now: datetime, seconds: float, owner: str = "anna") -> Run:
    """Its node waits for the next run of a cluster."""
    spell = IdleSpell(f"{run.id}-1", now - timedelta(seconds=seconds), None, HOUR, owner=owner)
    return replace(run, person="ben", state=RunState.SUCCEEDED, idle=(spell,))


def test_idle_time_counts_for_the_owner_of_the_cluster_and_for_everybody(make_run: Make, now: datetime) -> None:
    waits, works = idle(make_run(1), now, 30), costing(make_run(2, person="anna"), now, 10)
    runs = [waits, works]
    assert used(replace(DAY, person="anna"), runs, (), now) == Decimal("0.40")
    assert used(replace(DAY, person="ben"), runs, (), now) == 0
    assert used(DAY, runs, (), now) == Decimal("0.40")
    left = allowances(runs, LimitFacts((replace(DAY, person="anna"),)), now)
    assert left[works.id].usd == Decimal("0.10") + Decimal("0.30"), "the idle node costs as much from now on"
    assert waits.id not in left


def test_idle_nodes_go_before_a_limit_is_passed(make_run: Make, now: datetime) -> None:
    anna = LimitFacts((replace(DAY, person="anna"),))
    assert exhausted([idle(make_run(1), now, 30)], anna, now) == set()
    assert exhausted([idle(make_run(1), now, 50)], anna, now) == {"anna"}, "it costs for a minute until it is gone"
    assert exhausted([idle(make_run(1), now, 50, owner="ben")], anna, now) == set()
