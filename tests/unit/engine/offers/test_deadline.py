"""Whether a deadline can still be met, and which machine follows from that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from stoker.engine.decision import Sighting, StartSpare, StopNode
from stoker.engine.lifecycle import begin
from stoker.engine.offers.deadline import SUPPOSED_LOSS_S, SUPPOSED_START_S, Urgency, noted, outlook, words
from stoker.engine.offers.market import Market, attend, choose, let_go, needs, wanted
from stoker.engine.rounds import Scene, decide
from stoker.model.job.job import Job
from stoker.model.node import NodeSight, NodeState, Offer
from stoker.model.run.report import Effort, Kept, Mark, Outcome, Phase, Refusal, Report
from stoker.model.run.run import AttemptState, Run, RunState

Make = Callable[..., Run]
HOUR = 3600.0

SPOT = Offer("cloud", "small", "here", Decimal("0.30"), spot=True)
CHEAP = Offer("cloud", "small", "there", Decimal("0.10"), spot=True)
SURE = Offer("cloud", "small", "here", Decimal("1.00"))


@pytest.fixture
def run(make_run: Make) -> Run:
    """Ten hours for whatever it takes."""
    return replace(make_run(), job=Job(name="job", run="true", on="cloud", deadline=10 * HOUR))


@pytest.fixture
def market(run: Run) -> Market:
    spot, sure = needs(run.job)
    return {("cloud", spot): [SPOT], ("cloud", sure): [SURE]}


def after(now: datetime, seconds: float) -> datetime:
    return now + timedelta(seconds=seconds)


def report(now: datetime, progress: float | None, *, saved: bool = True, **facts: Any) -> Report:
    effort = Effort(now, kept=Kept(1, 1, now) if saved else None)
    known: dict[str, Any] = {"attempt": 1, "node": 0, "phase": Phase.RUNNING, "at": now, "beat": 1, "started_at": now}
    return Report(**{**known, "progress": progress, "effort": effort, **facts})


def working(run: Run, offer: Offer, now: datetime, hours: float, progress: float) -> Run:
    """The run on its first machine, so far after so many hours of work; it took five minutes to start."""
    asked = begin(run, now, [offer]).run
    first = Mark(after(now, 300), 0.0)
    last = Mark(after(now, 300 + hours * HOUR), progress, stride=0.01, saved=True)
    attempt = replace(asked.attempts[-1], state=AttemptState.RUNNING, started_at=now, first=first, last=last)
    return replace(asked, state=RunState.RUNNING, attempts=(attempt,))


def test_a_deadline_asks_for_both_kinds_without_spot_being_named(run: Run) -> None:
    assert [need.spot for need in needs(run.job)] == [True, False]


def test_spot_that_is_switched_off_stays_off_with_a_deadline() -> None:
    assert [need.spot for need in needs(Job(name="ants", run="true", spot=False, deadline=12 * HOUR))] == [False]


def test_work_that_is_left_is_measured(run: Run, now: datetime) -> None:
    view = outlook(working(run, SPOT, now, 2, 0.4), after(now, 300 + 2 * HOUR))
    assert view is not None
    assert view.work_s == pytest.approx(3 * HOUR)
    assert view.left_s == pytest.approx(8 * HOUR - 300)
    assert view.measured


def test_what_starting_took_is_measured_too(run: Run, now: datetime) -> None:
    known = outlook(working(run, SPOT, now, 2, 0.4), after(now, 3 * HOUR))
    unknown = outlook(run, now)
    assert known and known.change_s == pytest.approx(1.25 * (300 + SUPPOSED_LOSS_S))
    assert unknown and unknown.change_s == SUPPOSED_START_S + SUPPOSED_LOSS_S


def test_between_two_reports_a_run_is_supposed_to_go_on_but_not_for_long(run: Run, now: datetime) -> None:
    epochs = working(run, SPOT, now, 2, 0.4)
    soon = outlook(epochs, after(now, 300 + 2.04 * HOUR))
    late = outlook(epochs, after(now, 300 + 4 * HOUR))
    assert soon and soon.work_s == pytest.approx(2.96 * HOUR)
    assert late and late.work_s == pytest.approx(0.59 * 5 * HOUR)


def test_without_progress_half_of_the_deadline_is_supposed_to_be_work(run: Run, market: Market, now: datetime) -> None:
    assert choose(run, market, now) == SPOT
    assert choose(run, market, after(now, 5 * HOUR)) == SURE
    assert "the script does not report its progress yet, so 5 h of work are assumed" in words(run, now)
    limited = replace(run, job=replace(run.job, time_limit=9 * HOUR))
    assert choose(limited, market, after(now, HOUR)) == SURE


def test_a_run_waits_for_spot_while_it_has_time_and_not_when_it_has_not(
    run: Run, market: Market, now: datetime
) -> None:
    begun = working(run, SPOT, now, 2, 0.4)
    evicted = replace(begun.attempts[0], state=AttemptState.EVICTED, ended_at=after(now, 300 + 2 * HOUR))
    gone = Refusal(SPOT, after(now, 300 + 2 * HOUR))
    waiting = replace(begun, state=RunState.QUEUED, attempts=(replace(evicted, refusals=(gone, gone)),))
    assert choose(waiting, market, after(now, 310 + 2 * HOUR)) is None
    assert choose(waiting, market, after(now, 6 * HOUR)) == SPOT
    late = after(now, 6.8 * HOUR)
    closed = replace(waiting, attempts=(replace(evicted, refusals=(Refusal(SPOT, late),)),))
    assert choose(closed, market, late) == SURE
    view = outlook(closed, late)
    assert view and view.urgency is Urgency.URGENT


def test_one_that_was_never_measured_does_not_wait_for_long(run: Run, market: Market, now: datetime) -> None:
    asked = begin(run, now, [SPOT]).run.attempts[-1]
    nothing = replace(asked, state=AttemptState.LOST, trouble="no-capacity", ended_at=now)
    waiting = replace(run, attempts=(nothing,))
    assert choose(waiting, market, after(now, 5)) is None
    retried = replace(waiting, attempts=(replace(nothing, ended_at=after(now, 605)),))
    assert choose(retried, market, after(now, 610)) == SURE


def test_on_demand_asks_for_spot_ahead_and_moves_only_when_it_is_there(run: Run, market: Market, now: datetime) -> None:
    begun, later = working(run, SURE, now, 1, 0.2), after(now, 300 + HOUR)
    assert wanted(begun, market, later) == SPOT
    node = NodeSight(begun.attempts[-1].key, NodeState.UP)
    seen = Sighting(node=node, report=report(later, 0.2))
    (asked,) = decide([begun], {run.id: seen}, Scene({"cloud": None}, later, market))
    assert asked.run.attempts[-1].spare == SPOT
    assert any(isinstance(action, StartSpare) for action in asked.actions)
    assert asked.run.attempts[-1].notice is None
    there = replace(seen, spare=NodeSight(f"{run.id}-2", NodeState.UP))
    (moving,) = decide([asked.run], {run.id: there}, Scene({"cloud": None}, later, market))
    assert moving.run.attempts[-1].notice is not None
    assert moving.events[-1].text.startswith("attempt 1 is moving: there is enough time for a spot small in here")
    ended = replace(there, report=report(later, 0.2, outcome=Outcome.EVICTED), node=None)
    (moved,) = decide([moving.run], {run.id: ended}, Scene({"cloud": None}, later, market))
    assert [one.state for one in moved.run.attempts] == [AttemptState.MOVED, AttemptState.ASKED]
    assert moved.run.attempts[-1].offer == SPOT


def test_a_machine_that_is_unavailable_costs_a_run_nothing(run: Run, market: Market, now: datetime) -> None:
    begun, later = working(run, SURE, now, 1, 0.2), after(now, 300 + HOUR)
    asked = replace(begun, attempts=(replace(begun.attempts[-1], spare=SPOT),))
    gone = NodeSight(f"{run.id}-2", NodeState.GONE, "there is none")
    stays = attend(asked, Sighting(spare=gone), later)
    assert stays.run.attempts[-1].refusals == (Refusal(SPOT, later),)
    assert stays.actions == (StopNode("cloud", gone.key),)
    assert wanted(stays.run, market, later) is None
    assert wanted(stays.run, market, after(later, 60)) == SPOT


def test_a_run_that_has_saved_nothing_is_never_moved(run: Run, market: Market, now: datetime) -> None:
    begun, later = working(run, SURE, now, 1, 0.2), after(now, 300 + HOUR)
    attempt = begun.attempts[-1]
    assert attempt.last is not None
    unsaved = replace(begun, attempts=(replace(attempt, last=replace(attempt.last, saved=False)),))
    assert wanted(unsaved, market, later) is None


def test_spot_is_left_before_an_eviction_would_cost_the_deadline(run: Run, market: Market, now: datetime) -> None:
    slow, later = working(run, SPOT, now, 5, 0.5), after(now, 300 + 5 * HOUR)
    assert wanted(slow, market, later) == SURE
    fast = working(run, SPOT, now, 5, 0.8)
    assert wanted(fast, market, later) is None


def test_cheaper_spot_is_worth_a_move_where_much_is_left(run: Run, market: Market, now: datetime) -> None:
    spot, sure = needs(run.job)
    both = {("cloud", spot): [SPOT, CHEAP], ("cloud", sure): [SURE]}
    assert wanted(working(run, SPOT, now, 1, 0.2), both, after(now, 300 + HOUR)) == CHEAP
    assert wanted(working(run, SPOT, now, 1, 0.9), both, after(now, 300 + HOUR)) is None


def test_on_demand_is_released_where_there_is_time_to_wait(run: Run, market: Market, now: datetime) -> None:
    begun, later = working(run, SURE, now, 1, 0.3), after(now, 300 + HOUR)
    assert let_go(begun, market, later) is None  # spot has not been tried yet
    refused = replace(begun.attempts[-1], refusals=(Refusal(SPOT, later),))
    freed = let_go(replace(begun, attempts=(refused,)), market, later)
    assert freed is not None
    assert freed.run.attempts[-1].moving == "there is time to wait for spot, which is cheaper"
    pressed = let_go(replace(begun, attempts=(refused,)), market, after(now, 5.5 * HOUR))
    assert pressed is None


def test_marks_are_made_now_and_then_and_begin_at_nothing(run: Run, now: datetime) -> None:
    attempt = begin(run, now, [SPOT]).run.attempts[-1]
    begun = noted(attempt, report(now, None, saved=False), now, first=True)
    assert begun.first == Mark(now, 0.0)
    assert noted(attempt, report(now, None, saved=False), now, first=False) is attempt
    soon = noted(begun, report(now, 0.1, saved=False), after(now, 5), first=True)
    assert soon is begun
    later = noted(begun, report(now, 0.1, saved=False), after(now, 40), first=True)
    assert later.last == Mark(after(now, 40), 0.1, stride=0.1)
    assert noted(begun, report(now, 0.05), after(now, 5), first=True, final=True).last == Mark(
        after(now, 5), 0.05, 0.05, saved=True
    )


def test_a_deadline_that_is_over_is_reported(run: Run, now: datetime) -> None:
    assert words(run, after(now, 11 * HOUR)) == "its deadline passed 1 h ago"
    slow = working(run, SPOT, now, 5, 0.2)
    assert "which can no longer be met" in words(slow, after(now, 300 + 5 * HOUR))
