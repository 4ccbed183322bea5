"""Kept nodes of failed runs: how long, when they are released, and what is reported meanwhile."""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from stoker.engine.decision import Sighting, StopNode, TellAgent
from stoker.engine.lifecycle import advance, begin
from stoker.engine.nodes.nodes import claimed, release
from stoker.errors import Conflict
from stoker.model.node import NodeSight, NodeState
from stoker.model.orders import Wish
from stoker.model.run.report import Outcome, Phase, Report
from stoker.model.run.run import Run, RunState

Make = Callable[..., Run]
LATER = timedelta(minutes=29)


def failing(make_run: Make, now: datetime, **job: object) -> Run:
    return begin(make_run(job=job), now).run


def seen(run: Run, state: NodeState = NodeState.UP, outcome: Outcome = Outcome.FAILED) -> Sighting:
    at = run.attempts[-1].asked_at
    last = Report(attempt=1, node=0, phase=Phase.DONE, at=at, beat=2, outcome=outcome, exit_code=3, message="why")
    return Sighting(NodeSight(run.attempts[-1].key, state), last)


def failed(make_run: Make, now: datetime, **job: object) -> Run:
    run = failing(make_run, now, **job)
    return advance(run, seen(run), now).run


def test_the_node_of_a_failed_run_stays_for_as_long_as_the_job_says(make_run: Make, now: datetime) -> None:
    run = failing(make_run, now, keep_failed="30m")
    ended = advance(run, seen(run), now)
    assert (ended.run.state, ended.run.exit_code) == (RunState.FAILED, 3)
    assert ended.run.kept_until == now + timedelta(minutes=30)
    assert [event.kind for event in ended.events] == ["failed", "kept"]
    assert claimed([ended.run]) == {"000000000001-1"}
    assert not ended.run.open, "whoever waits for the run does not wait for its node"
    assert ended.run.tended


@pytest.mark.parametrize("outcome", [Outcome.BROKEN, Outcome.TIMED_OUT])
def test_whatever_failed_can_be_looked_at(make_run: Make, now: datetime, outcome: Outcome) -> None:
    run = failing(make_run, now, keep_failed="30m")
    assert advance(run, seen(run, outcome=outcome), now).run.kept_until


def test_a_job_that_does_not_ask_for_it_keeps_nothing(make_run: Make, now: datetime) -> None:
    run = failed(make_run, now)
    assert run.kept_until is None
    assert claimed([run]) == set()


def test_a_run_that_succeeds_keeps_nothing(make_run: Make, now: datetime) -> None:
    run = failing(make_run, now, keep_failed="30m")
    assert advance(run, seen(run, outcome=Outcome.SUCCEEDED), now).run.kept_until is None


def test_a_run_that_is_tried_again_keeps_nothing_until_its_last_try(make_run: Make, now: datetime) -> None:
    run = failed(make_run, now, keep_failed="30m", retries=1)
    assert (run.state, run.kept_until) == (RunState.QUEUED, None)


def test_a_run_that_fails_while_it_is_cancelled_keeps_nothing(make_run: Make, now: datetime) -> None:
    run = replace(failing(make_run, now, keep_failed="30m"), wish=Wish.CANCEL)
    assert advance(run, seen(run), now).run.kept_until is None


def test_a_kept_node_hears_from_the_server_so_that_its_lease_continues(make_run: Make, now: datetime) -> None:
    run = failed(make_run, now, keep_failed="30m")
    after = advance(run, seen(run), now + LATER)
    assert (after.run, after.actions) == (run, (TellAgent(run),))


def test_a_kept_node_is_released_when_its_time_is_up(make_run: Make, now: datetime) -> None:
    run = failed(make_run, now, keep_failed="30m")
    after = advance(run, seen(run), now + timedelta(minutes=30))
    assert after.run.kept_until is None
    assert after.actions == (StopNode("local", "000000000001-1"),)
    assert [event.kind for event in after.events] == ["released"]
    assert not after.run.tended


@pytest.mark.parametrize("sight", [None, NodeState.GONE])
def test_a_kept_node_that_is_evicted_is_kept_no_longer(make_run: Make, now: datetime, sight: NodeState | None) -> None:
    run = failed(make_run, now, keep_failed="30m")
    what = seen(run, sight) if sight else Sighting()
    assert advance(run, what, now + LATER).run.kept_until is None


def test_somebody_may_release_it_early_and_only_once(make_run: Make, now: datetime) -> None:
    run = failed(make_run, now, keep_failed="30m")
    early = release(run, now + timedelta(minutes=1))
    assert early.actions == (StopNode("local", "000000000001-1"),)
    with pytest.raises(Conflict):
        release(early.run, now)
