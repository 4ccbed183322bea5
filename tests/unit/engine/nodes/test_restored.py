"""Runs restored from their records: followed to their end if something of them is active, never started."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from stoker.engine.decision import Decision, Sighting, StartNode, StartSpare, StopNode, TellAgent
from stoker.engine.money.fuse import set_budget
from stoker.engine.nodes.nodes import RESTORED_GRACE_S, restored
from stoker.engine.offers.market import needs
from stoker.engine.rounds import Scene, decide
from stoker.model.cause import Cause
from stoker.model.node import NodeSight, NodeState, Offer
from stoker.model.orders import Notice, Wish
from stoker.model.run.report import Outcome, Phase, Report
from stoker.model.run.run import Attempt, AttemptState, Run, RunState

Make = Callable[..., Run]
KEY = "000000000001-1"
UP = NodeSight(KEY, NodeState.UP)


def attempt(now: datetime, state: AttemptState = AttemptState.RUNNING, **facts: Any) -> Attempt:
    return Attempt(1, KEY, state, now, started_at=now, **facts)


def under_way(make_run: Make, now: datetime, **facts: Any) -> Run:
    return restored(make_run(state=RunState.RUNNING, attempts=(attempt(now),), **facts), now)


def next_of(run: Run, seen: Sighting, now: datetime) -> Decision:
    return next(iter(decide([run], {run.id: seen}, Scene({"local": 4}, now))))


def report(now: datetime, outcome: Outcome | None = None, code: int = 0) -> Report:
    phase = Phase.DONE if outcome else Phase.RUNNING
    return Report(1, 0, phase, now, 1, started_at=now, outcome=outcome, exit_code=code)


def test_what_is_over_or_waits_for_a_person_is_as_it_was(make_run: Make, now: datetime) -> None:
    for state in (RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED, RunState.PAUSED):
        run = make_run(state=state, attempts=(attempt(now, AttemptState.ENDED),))
        assert restored(run, now) == run


@pytest.mark.parametrize("attempts", [0, 1])
def test_what_waited_for_a_node_ends_and_says_how_to_continue(make_run: Make, now: datetime, attempts: int) -> None:
    before = (attempt(now, AttemptState.EVICTED),) * attempts
    run = restored(make_run(state=RunState.QUEUED, attempts=before), now)
    assert (run.state, run.exit_code, run.ended_at, run.attempts) == (RunState.FAILED, 125, now, before)
    assert run.cause == Cause.RESTORED
    assert run.hint == "continue with `stoker rerun ants-1`"
    cancelled = make_run(state=RunState.QUEUED, wish=Wish.CANCEL)
    assert next_of(restored(cancelled, now), Sighting(), now).run.state is RunState.CANCELLED


def test_a_node_that_is_there_goes_on_and_its_end_counts(make_run: Make, now: datetime) -> None:
    run = under_way(make_run, now)
    going = next_of(run, Sighting(UP, report(now)), now)
    assert (going.run.state, going.actions) == (RunState.RUNNING, (TellAgent(going.run),))
    ended = next_of(run, Sighting(UP, report(now, Outcome.SUCCEEDED)), now)
    assert ended.run.state is RunState.SUCCEEDED


REPORT = report(datetime(2026, 3, 1, 12, tzinfo=UTC))


@pytest.mark.parametrize(
    "seen",
    [
        Sighting(replace(UP, state=NodeState.GONE)),
        Sighting(replace(UP, state=NodeState.GONE, taken=True)),
        Sighting(None, REPORT),
        Sighting(UP, replace(REPORT, outcome=Outcome.EVICTED)),
        Sighting(UP, replace(REPORT, outcome=Outcome.CANCELLED)),
        Sighting(UP, replace(REPORT, outcome=Outcome.FAILED, exit_code=1)),
        Sighting(UP, REPORT, silent_s=9999.0),
        Sighting(trouble="no room"),
    ],
)
def test_whatever_becomes_of_its_node_no_other_is_started(make_run: Make, now: datetime, seen: Sighting) -> None:
    run = under_way(make_run, now, job={"retries": 3})
    decision = next_of(run, seen, now)
    assert (decision.run.state, "interrupted" in decision.run.reason) == (RunState.FAILED, True)
    assert not any(isinstance(one, StartNode | StartSpare) for one in decision.actions)
    assert all(one.state.over for one in decision.run.attempts)
    usual = next_of(replace(run, restored_at=None), seen, now)
    assert usual.run.state in (RunState.QUEUED, RunState.STARTING), "which goes on by itself"


def test_a_node_that_cannot_be_found_is_waited_for_and_then_given_up(make_run: Make, now: datetime) -> None:
    """The same facts start a node where the run was not restored."""
    run = under_way(make_run, now)
    assert next_of(replace(run, restored_at=None), Sighting(), now).actions == (
        StartNode(replace(run, restored_at=None)),
    )
    early = next_of(run, Sighting(), now + timedelta(seconds=RESTORED_GRACE_S - 1))
    assert (early.run.state, early.actions) == (RunState.RUNNING, ())
    late = next_of(run, Sighting(), now + timedelta(seconds=RESTORED_GRACE_S))
    assert (late.run.state, late.actions) == (RunState.FAILED, (StopNode("local", KEY),))


def test_nothing_is_asked_for_ahead(make_run: Make, now: datetime) -> None:
    offer = Offer("local", "s", "here", Decimal(1))
    notice = Notice(now, now + timedelta(seconds=30), drill=False)
    warned = make_run(state=RunState.RUNNING, attempts=(attempt(now, offer=offer, spare=offer),))
    run = restored(warned, now)
    assert run.attempts[0].spare is None
    run = replace(run, attempts=(replace(run.attempts[0], notice=notice),))
    market = {("local", need): [offer] for need in needs(run.job)}
    seen = {run.id: Sighting(UP, replace(report(now), notice=notice))}
    found = decide([run], seen, Scene({"local": 4}, now, market))[0]
    assert not any(isinstance(one, StartNode | StartSpare) for one in found.actions)
    other = replace(run, restored_at=None)
    usual = decide([other], seen, Scene({"local": 4}, now, market))[0]
    assert any(isinstance(one, StartSpare) for one in usual.actions)


def test_whoever_raises_the_budget_starts_it_again(make_run: Make, now: datetime) -> None:
    run = make_run(state=RunState.PAUSED, budget=Decimal(1), restored_at=now)
    after = set_budget(run, Decimal(5), now).run
    assert (after.state, after.restored_at) == (RunState.QUEUED, None)
