"""Which offer an attempt takes, what it waits for, and the node that is requested before an eviction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal

import pytest

from stoker.engine.decision import Sighting, StartNode, StartSpare
from stoker.engine.lifecycle import advance, begin
from stoker.engine.nodes.nodes import claimed
from stoker.engine.offers.market import BARRED_S, FIRST_PAUSE_S, Market, choose, needs, why_none
from stoker.engine.patience import MOST_LOST
from stoker.engine.rounds import Scene, decide
from stoker.model.job.job import Fallback, Job, Spot
from stoker.model.node import NodeSight, NodeState, Offer
from stoker.model.orders import Notice
from stoker.model.run.report import Outcome, Phase, Report
from stoker.model.run.run import AttemptState, Run, RunState

Make = Callable[..., Run]

CHEAP = Offer("cloud", "small", "here", Decimal("0.10"), spot=True)
OTHER = Offer("cloud", "small", "there", Decimal("0.12"), spot=True)
SURE = Offer("cloud", "small", "here", Decimal("0.50"))


@pytest.fixture
def run(make_run: Make) -> Run:
    job = Job(name="job", run="true", on="cloud", spot=Spot(fallback=Fallback.ON_DEMAND))
    return replace(make_run(), job=job)


@pytest.fixture
def market(run: Run) -> Market:
    spot, sure = needs(run.job)
    return {("cloud", spot): [OTHER, CHEAP], ("cloud", sure): [SURE]}


def lost(run: Run, offer: Offer, at: datetime, trouble: str = "no-capacity") -> Run:
    asked = begin(run, at, [offer]).run
    gone = NodeSight(asked.attempts[-1].key, NodeState.GONE, "nothing there", trouble, still=True)
    return advance(asked, Sighting(node=gone), at).run


def test_the_cheapest_spot_is_taken_first(run: Run, market: Market, now: datetime) -> None:
    assert choose(run, market, now) == CHEAP


def test_an_offer_that_had_nothing_is_left_alone_for_longer_each_time(run: Run, market: Market, now: datetime) -> None:
    run = lost(run, CHEAP, now)
    assert choose(run, market, now) == OTHER
    assert choose(run, market, now + timedelta(seconds=FIRST_PAUSE_S)) == CHEAP
    run = lost(run, CHEAP, now + timedelta(seconds=FIRST_PAUSE_S))
    assert choose(run, market, now + timedelta(seconds=2 * FIRST_PAUSE_S)) == OTHER
    assert choose(run, market, now + timedelta(seconds=3 * FIRST_PAUSE_S)) == CHEAP


def test_without_any_spot_the_fallback_is_on_demand(run: Run, market: Market, now: datetime) -> None:
    run = lost(lost(run, CHEAP, now), OTHER, now)
    assert choose(run, market, now) == SURE


def test_without_a_fallback_the_run_waits_and_says_for_what(run: Run, market: Market, now: datetime) -> None:
    run = replace(run, job=replace(run.job, spot=Spot()))
    run = lost(lost(run, CHEAP, now), OTHER, now)
    assert choose(run, market, now) is None
    assert why_none(run, market, now).startswith("nothing there; retrying at ")
    (decision,) = decide([run], {run.id: Sighting()}, Scene({"cloud": None}, now, market))
    assert decision.run.state is RunState.QUEUED
    assert decision.run.reason.startswith("nothing there; retrying at ")


def test_an_offer_that_is_refused_for_a_reason_of_its_own_is_closed_to_the_run(
    run: Run, market: Market, now: datetime
) -> None:
    """Whatever the reason: another size is requested, and none of those five times."""
    later = now + timedelta(days=1)
    run = lost(run, CHEAP, now, "provider-failed")
    assert choose(run, market, later) == OTHER
    run = lost(run, OTHER, now, "something-new")
    assert choose(run, market, later) == SURE, "on-demand, where the job allows it"
    run = lost(run, SURE, now, "provider-failed")
    assert choose(run, market, later) == CHEAP, "with nothing else left, the run ends as others do that lose nodes"


def test_a_refused_offer_is_tried_again_where_the_others_never_have_room(
    run: Run, market: Market, now: datetime
) -> None:
    """A machine that could not be created once, and a place that is too narrow for the run: it would wait for ever."""
    run = replace(run, job=replace(run.job, spot=Spot()))
    spot = {("cloud", need): offers for need, offers in zip(needs(run.job), market.values(), strict=False)}
    run = lost(run, CHEAP, now, "provider-failed")
    tried, at = [], now
    while at < now + timedelta(seconds=2 * BARRED_S):
        if offer := choose(run, spot, at):
            tried.append(offer)
            run = lost(run, offer, at, "provider-failed" if offer == CHEAP else "no-capacity")
        at += timedelta(seconds=30)
    assert set(tried) == {CHEAP, OTHER}
    assert tried.count(CHEAP) == 1, "it is not the first choice, and a size that cannot boot costs money"


def test_a_place_that_refuses_two_sizes_comes_after_the_others(run: Run, now: datetime) -> None:
    """A cloud may close a whole region to a subscription; the cheapest sizes are all there."""
    spot, _ = needs(run.job)
    sizes = [replace(CHEAP, size=f"s{number}", usd_per_hour=Decimal(number)) for number in range(1, 9)]
    elsewhere = replace(OTHER, usd_per_hour=Decimal(20))
    market: Market = {("cloud", spot): [*sizes, elsewhere]}
    run = lost(run, sizes[0], now, "provider-failed")
    assert choose(run, market, now) == sizes[1], "one refusal may be about the size"
    run = lost(run, sizes[1], now, "provider-failed")
    assert choose(run, market, now) == elsewhere
    assert choose(run, market, now + timedelta(seconds=BARRED_S + 1)) == sizes[2], "it may have been opened"
    run = lost(run, elsewhere, now, "provider-failed")
    assert choose(run, market, now) == sizes[2], "with nothing else left"


def test_a_place_that_gave_a_machine_since_is_not_closed(run: Run, now: datetime) -> None:
    spot, _ = needs(run.job)
    sizes = [replace(CHEAP, size=f"s{number}", usd_per_hour=Decimal(number)) for number in range(1, 5)]
    market: Market = {("cloud", spot): [*sizes, replace(OTHER, usd_per_hour=Decimal(20))]}
    run = lost(run, sizes[0], now, "provider-failed")
    run = lost(run, sizes[3], now, "")
    run = lost(run, sizes[1], now, "provider-failed")
    assert choose(run, market, now + timedelta(minutes=20)) == sizes[2]


def not_ready(run: Run, offer: Offer, at: datetime, outcome: Outcome = Outcome.NOT_READY) -> Run:
    """Its agent came up and gave the machine back: the GPU driver is missing."""
    asked = begin(run, at, [offer]).run
    said = Report(asked.attempts[-1].number, 0, Phase.DONE, at, beat=3, outcome=outcome, message="no driver")
    return advance(asked, Sighting(NodeSight(asked.attempts[-1].key, NodeState.UP), said), at).run


ROOMY = Offer("cloud", "roomy", "here", Decimal("0.90"), spot=True)


def test_a_size_whose_machine_was_not_ready_is_closed_to_the_run_everywhere(
    run: Run, market: Market, now: datetime
) -> None:
    """An image that lacks the driver of a GPU lacks it in every region, on spot and on demand."""
    later = now + timedelta(days=1)
    run = not_ready(run, CHEAP, now)
    assert (run.state, run.attempts[-1].trouble) == (RunState.QUEUED, "machine-not-ready")
    spot, _ = needs(run.job)
    assert choose(run, {**market, ("cloud", spot): [OTHER, CHEAP, ROOMY]}, later) == ROOMY
    assert choose(run, market, later) == CHEAP, "with nothing else left it is tried once more"


def test_a_size_that_was_not_ready_twice_ends_a_run_that_has_never_worked(run: Run, now: datetime) -> None:
    run = not_ready(not_ready(run, CHEAP, now), ROOMY, now)
    assert run.state is RunState.QUEUED, "each of them once"
    run = not_ready(run, OTHER, now)
    assert run.state is RunState.FAILED
    assert run.reason == "no driver; 2 machines of size small did not get ready"


def test_a_run_that_has_worked_pays_for_a_few_machines_that_do_not_get_ready_and_no_more(
    run: Run, now: datetime
) -> None:
    run = begin(run, now, [ROOMY]).run
    said = Report(1, 0, Phase.RUNNING, now, beat=1, started_at=now)
    run = advance(run, Sighting(NodeSight(run.attempts[-1].key, NodeState.UP), said), now).run
    gone = NodeSight(run.attempts[-1].key, NodeState.GONE, taken=True)
    run = advance(run, Sighting(gone, said), now).run
    for _ in range(MOST_LOST):
        assert run.state is RunState.QUEUED
        run = not_ready(run, CHEAP, now)
    assert run.state is RunState.FAILED


def test_a_machine_that_was_shut_down_before_its_script_began_closes_no_size(
    run: Run, market: Market, now: datetime
) -> None:
    run = not_ready(run, CHEAP, now, Outcome.CANCELLED)
    assert choose(run, market, now + timedelta(days=1)) == CHEAP


def test_a_price_that_has_risen_above_the_limit_is_the_weather(run: Run, market: Market, now: datetime) -> None:
    asked = lost(run, CHEAP, now, "price-too-high")
    assert choose(asked, market, now) == OTHER
    assert choose(asked, market, now + timedelta(seconds=FIRST_PAUSE_S)) == CHEAP, "prices fall again"
    for _ in range(3 * MOST_LOST):
        asked = lost(asked, CHEAP, now, "price-too-high")
    assert asked.state is RunState.QUEUED


def test_weather_never_ends_a_run_but_other_losses_do(run: Run, now: datetime) -> None:
    patient = run
    for _ in range(3 * MOST_LOST):
        patient = lost(patient, CHEAP, now)
    assert patient.state is RunState.QUEUED
    for _ in range(MOST_LOST):
        run = lost(run, CHEAP, now, trouble="")
    assert run.state is RunState.FAILED


def test_a_price_above_the_maximum_is_not_an_offer(run: Run, market: Market, now: datetime) -> None:
    run = replace(run, job=replace(run.job, spot=Spot(max_price=Decimal("0.05"))))
    assert choose(run, market, now) is None
    assert why_none(run, market, now) == "the cheapest costs $0.1000 per hour (small in here)"


def test_an_offer_with_a_recent_eviction_comes_after_the_others(run: Run, market: Market, now: datetime) -> None:
    begun = begin(run, now, [CHEAP]).run
    evicted = replace(begun.attempts[-1], state=AttemptState.EVICTED, ended_at=now)
    run = replace(begun, state=RunState.QUEUED, attempts=(evicted,))
    assert choose(run, market, now) == OTHER
    assert choose(run, market, now + timedelta(hours=1)) == CHEAP


def report(now: datetime, notice: Notice | None) -> Report:
    return Report(1, 0, Phase.RUNNING, now, 1, started_at=now, notice=notice)


def test_a_notice_of_the_machines_owner_asks_for_the_next_node_at_once(run: Run, market: Market, now: datetime) -> None:
    begun = begin(run, now, [CHEAP]).run
    node = NodeSight(begun.attempts[-1].key, NodeState.UP)
    warned = Sighting(node=node, report=report(now, Notice(now, now + timedelta(seconds=30), drill=False)))
    (decision,) = decide([begun], {run.id: warned}, Scene({"cloud": None}, now, market))
    assert any(isinstance(action, StartSpare) for action in decision.actions)
    assert decision.run.attempts[-1].spare == OTHER  # where this one is being evicted, the next one would be too
    assert claimed([decision.run]) == {f"{run.id}-1", f"{run.id}-2"}
    again = decide([decision.run], {run.id: warned}, Scene({"cloud": None}, now, market))
    assert not any(isinstance(action, StartSpare) for one in again for action in one.actions)


def test_the_node_asked_for_ahead_is_the_one_that_resumes(run: Run, market: Market, now: datetime) -> None:
    begun = begin(run, now, [CHEAP]).run
    node = NodeSight(begun.attempts[-1].key, NodeState.UP)
    warned = Sighting(node=node, report=report(now, Notice(now, now + timedelta(seconds=8), drill=False)))
    (ahead,) = decide([begun], {run.id: warned}, Scene({"cloud": None}, now, market))
    gone = Sighting(node=NodeSight(node.key, NodeState.GONE, "taken", still=True))
    (after,) = decide([ahead.run], {run.id: gone}, Scene({"cloud": None}, now, market))
    assert [one.state for one in after.run.attempts] == [AttemptState.EVICTED, AttemptState.ASKED]
    assert after.run.attempts[-1].offer == OTHER
    assert any(isinstance(action, StartNode) for action in after.actions)


def test_a_withdrawn_notice_lets_the_spare_node_go(run: Run, market: Market, now: datetime) -> None:
    begun = begin(run, now, [CHEAP]).run
    node = NodeSight(begun.attempts[-1].key, NodeState.UP)
    warned = Sighting(node=node, report=report(now, Notice(now, now + timedelta(seconds=30), drill=False)))
    (ahead,) = decide([begun], {run.id: warned}, Scene({"cloud": None}, now, market))
    (kept,) = decide(
        [ahead.run], {run.id: replace(warned, report=report(now, None))}, Scene({"cloud": None}, now, market)
    )
    assert kept.run.attempts[-1].notice is None
    assert claimed([kept.run]) == {f"{run.id}-1"}


def test_an_earlier_node_that_can_do_nothing_any_more_holds_up_nobody(run: Run, market: Market, now: datetime) -> None:
    run = lost(run, CHEAP, now)
    key = run.attempts[-1].key
    (waiting,) = decide([run], {run.id: Sighting(leftovers=(key,))}, Scene({"cloud": None}, now, market))
    assert waiting.run.state is RunState.QUEUED
    (decision,) = decide([run], {run.id: Sighting(leftovers=(key,), still=(key,))}, Scene({"cloud": None}, now, market))
    assert decision.run.state is RunState.STARTING


@pytest.mark.parametrize("written", [False, "false"])
def test_spot_that_is_refused_is_not_asked_for_whatever_the_deadline(written: object) -> None:
    job = Job(name="job", run="true", on="cloud", spot=written, deadline=12 * 3600.0)  # type: ignore[arg-type]
    assert [need.spot for need in needs(job)] == [False]
    assert [need.spot for need in needs(Job.read(job.plain()))] == [False]
    assert [need.spot for need in needs(Job(name="job", run="true", on="cloud", deadline=12 * 3600.0))] == [True, False]
    assert [need.spot for need in needs(Job(name="job", run="true", on="cloud", spot=None))] == [False]
