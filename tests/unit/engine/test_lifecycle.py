"""The life of a run, one decision at a time."""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from stoker.engine.decision import Land, Sighting, StartNode, StopNode, TellAgent, evict, rate_per_hour, withdraw
from stoker.engine.lifecycle import STOP_PATIENCE_S, advance, begin
from stoker.engine.money.receipt import with_effort
from stoker.engine.patience import MOST_LOST
from stoker.errors import Conflict
from stoker.model.node import NodeSight, NodeState
from stoker.model.orders import Wish
from stoker.model.run.money import Spell
from stoker.model.run.report import Effort, MetricSummary, Outcome, Phase, Report
from stoker.model.run.run import AttemptState, Run, RunState

Make = Callable[..., Run]


def up(run: Run) -> NodeSight:
    return NodeSight(run.attempts[-1].key, NodeState.UP)


def gone(run: Run) -> NodeSight:
    return NodeSight(run.attempts[-1].key, NodeState.GONE, "its agent died")


def report(now: datetime, outcome: Outcome | None = None, **facts: Any) -> Report:
    phase = Phase.DONE if outcome else Phase.RUNNING
    known: dict[str, Any] = {"attempt": 1, "node": 0, "phase": phase, "at": now, "beat": 1, "outcome": outcome}
    return Report(**(known | facts))


def test_a_queued_run_without_room_stays_as_it_is(make_run: Make, now: datetime) -> None:
    run = make_run()
    assert advance(run, Sighting(), now).run == run


def test_beginning_asks_for_a_node_under_a_key_of_run_and_attempt(make_run: Make, now: datetime) -> None:
    begun = begin(make_run(), now)
    assert begun.run.state is RunState.STARTING
    assert [attempt.key for attempt in begun.run.attempts] == ["000000000001-1"]
    assert begun.actions == (StartNode(begun.run),)


def test_a_node_that_was_asked_for_but_never_seen_is_asked_for_again(make_run: Make, now: datetime) -> None:
    run = begin(make_run(), now).run
    again = advance(run, Sighting(), now)
    assert again.run == run
    assert again.actions == (StartNode(run),)


def test_a_node_that_was_asked_for_ahead_gets_its_orders_once_they_can_be_written(
    make_run: Make, now: datetime
) -> None:
    """The node exists, so it would not be requested again: but it waits for orders that its store did not accept."""
    run = begin(make_run(), now).run
    unwritten = Sighting(up(run), unasked=(run.attempts[-1].key,))
    late = now + timedelta(hours=1)
    assert advance(run, unwritten, late).actions == (StartNode(run),)
    assert advance(run, Sighting(up(run)), now).actions == (TellAgent(run),)
    cancelled = replace(run, wish=Wish.CANCEL)
    assert StartNode(cancelled) not in advance(cancelled, unwritten, now).actions


def test_a_node_that_reported_and_is_no_longer_there_is_lost_not_started_twice(make_run: Make, now: datetime) -> None:
    run = begin(make_run(), now).run
    after = advance(run, Sighting(None, report(now)), now)
    assert after.run.attempts[0].state is AttemptState.LOST
    assert after.actions == (StopNode("local", run.attempts[0].key),)  # a list may omit what exists


def test_a_node_that_was_seen_and_vanished_without_a_report_is_lost_not_paid_for_twice(
    make_run: Make, now: datetime
) -> None:
    run = begin(make_run(), now).run
    key = run.attempts[0].key
    seen = replace(run, spells=(Spell(key, now, now + timedelta(seconds=60), Decimal(1), now),))
    after = advance(seen, Sighting(), now)
    assert after.run.attempts[0].state is AttemptState.LOST
    assert after.actions == (StopNode("local", key),)


def test_a_run_cancelled_before_its_node_was_there_is_cancelled(make_run: Make, now: datetime) -> None:
    run = replace(begin(make_run(), now).run, wish=Wish.CANCEL)
    assert advance(run, Sighting(), now).run.state is RunState.CANCELLED


def test_the_first_report_of_a_started_script_makes_the_run_running(make_run: Make, now: datetime) -> None:
    run = begin(make_run(), now).run
    seen = Sighting(up(run), report(now, started_at=now))
    running = advance(run, seen, now).run
    assert (running.state, running.started_at) == (RunState.RUNNING, now)
    assert advance(running, seen, now).run == running


@pytest.mark.parametrize(
    ("outcome", "state", "exit_code"),
    [
        (Outcome.SUCCEEDED, RunState.SUCCEEDED, 0),
        (Outcome.TARGET_REACHED, RunState.SUCCEEDED, 0),
        (Outcome.FAILED, RunState.FAILED, 3),
        (Outcome.BROKEN, RunState.FAILED, 3),
        (Outcome.TIMED_OUT, RunState.FAILED, 3),
    ],
)
def test_an_outcome_ends_the_run(
    make_run: Make, now: datetime, outcome: Outcome, state: RunState, exit_code: int
) -> None:
    run = begin(make_run(), now).run
    ended = advance(run, Sighting(gone(run), report(now, outcome, exit_code=3, message="why")), now).run
    assert (ended.state, ended.exit_code, ended.reason, ended.ended_at) == (state, exit_code, "why", now)


def test_a_failure_without_an_exit_code_is_still_a_failure(make_run: Make, now: datetime) -> None:
    run = begin(make_run(), now).run
    assert advance(run, Sighting(up(run), report(now, Outcome.BROKEN)), now).run.exit_code == 125


def test_a_failed_script_is_tried_again_as_often_as_the_job_says(make_run: Make, now: datetime) -> None:
    run = begin(make_run(job={"retries": 1}), now).run
    failed = Sighting(gone(run), report(now, Outcome.FAILED, exit_code=1))
    run = advance(run, failed, now).run
    assert run.state is RunState.QUEUED
    run = begin(run, now).run
    assert advance(run, failed, now).run.state is RunState.FAILED


def test_a_run_that_could_not_be_prepared_is_not_tried_again(make_run: Make, now: datetime) -> None:
    run = begin(make_run(job={"retries": 3}), now).run
    assert advance(run, Sighting(up(run), report(now, Outcome.BROKEN)), now).run.state is RunState.FAILED


def test_a_lost_node_ends_the_attempt_not_the_run(make_run: Make, now: datetime) -> None:
    run = begin(make_run(), now).run
    lost = advance(run, Sighting(gone(run), report(now, started_at=now)), now).run
    assert (lost.state, lost.attempts[0].state) == (RunState.QUEUED, AttemptState.LOST)
    assert begin(lost, now).run.attempts[-1].number == 2


def test_lost_nodes_do_not_use_up_retries(make_run: Make, now: datetime) -> None:
    run = begin(make_run(job={"retries": 1}), now).run
    run = begin(advance(run, Sighting(gone(run)), now).run, now).run
    assert advance(run, Sighting(gone(run), report(now, Outcome.FAILED)), now).run.state is RunState.QUEUED


def test_nodes_that_keep_vanishing_end_the_run(make_run: Make, now: datetime) -> None:
    run = make_run()
    for _ in range(MOST_LOST):
        run = begin(run, now).run
        run = advance(run, Sighting(gone(run)), now).run
    assert (run.state, run.exit_code) == (RunState.FAILED, 125)


def test_an_agent_that_falls_silent_is_lost(make_run: Make, now: datetime) -> None:
    run = begin(make_run(), now).run
    seen = Sighting(up(run), report(now, started_at=now), silent_s=11, patience_s=10)
    assert advance(run, seen, now).run.attempts[0].state is AttemptState.LOST


def test_what_an_earlier_attempt_left_is_stopped_while_the_run_waits(make_run: Make, now: datetime) -> None:
    run = begin(make_run(), now).run
    lost = advance(run, Sighting(gone(run)), now).run
    assert advance(lost, Sighting(leftovers=("000000000001-1",)), now).actions == (StopNode("local", "000000000001-1"),)


def test_cancelling_a_queued_run_ends_it_at_once(make_run: Make, now: datetime) -> None:
    cancelled = advance(make_run(wish=Wish.CANCEL), Sighting(), now).run
    assert (cancelled.state, cancelled.exit_code) == (RunState.CANCELLED, 130)


def test_cancelling_tells_the_agent_then_stops_the_node_when_patience_ends(make_run: Make, now: datetime) -> None:
    run = replace(begin(make_run(), now).run, wish=Wish.CANCEL)
    assert advance(run, Sighting(up(run)), now).actions == (TellAgent(run),)
    late = advance(run, Sighting(up(run), wished_s=STOP_PATIENCE_S + 1), now)
    assert late.actions == (TellAgent(run), StopNode("local", run.attempts[-1].key))
    assert advance(run, Sighting(gone(run)), now).run.state is RunState.CANCELLED


def test_a_cancelled_outcome_nobody_asked_for_is_a_lost_node(make_run: Make, now: datetime) -> None:
    run = begin(make_run(), now).run
    assert advance(run, Sighting(gone(run), report(now, Outcome.CANCELLED)), now).run.state is RunState.QUEUED


def test_a_run_that_succeeds_while_it_is_being_cancelled_has_succeeded(make_run: Make, now: datetime) -> None:
    run = replace(begin(make_run(), now).run, wish=Wish.CANCEL)
    assert advance(run, Sighting(gone(run), report(now, Outcome.SUCCEEDED)), now).run.state is RunState.SUCCEEDED


def test_a_node_is_evicted_when_its_notice_has_run_out(make_run: Make, now: datetime) -> None:
    run = evict(begin(make_run(), now).run, 30, now).run
    warned = advance(run, Sighting(up(run)), now + timedelta(seconds=29))
    assert (warned.run, warned.actions) == (run, (TellAgent(run),))
    taken = advance(run, Sighting(up(run)), now + timedelta(seconds=30))
    assert (taken.run.state, taken.run.attempts[0].state) == (RunState.QUEUED, AttemptState.EVICTED)
    assert taken.actions == (StopNode("local", run.attempts[0].key),)


def test_a_node_that_goes_before_its_notice_has_run_out_was_evicted_not_lost(make_run: Make, now: datetime) -> None:
    run = evict(begin(make_run(), now).run, 30, now).run
    assert advance(run, Sighting(gone(run)), now).run.attempts[0].state is AttemptState.EVICTED


def test_a_withdrawn_notice_takes_nothing_away(make_run: Make, now: datetime) -> None:
    run = withdraw(evict(begin(make_run(), now).run, 30, now).run, now).run
    assert advance(run, Sighting(up(run)), now + timedelta(seconds=31)).run == run


def test_a_run_without_a_node_cannot_be_evicted(make_run: Make, now: datetime) -> None:
    with pytest.raises(Conflict, match="queued"):
        evict(make_run(), 30, now)


def test_evictions_use_up_neither_retries_nor_losses(make_run: Make, now: datetime) -> None:
    run = make_run()
    for _ in range(MOST_LOST + 5):
        run = begin(run, now).run
        run = advance(run, Sighting(gone(run), report(now, Outcome.EVICTED)), now).run
    assert run.state is RunState.QUEUED


def test_metrics_of_a_run_are_those_of_all_its_attempts(make_run: Make, now: datetime) -> None:
    nan = float("nan")
    first = {"acc": MetricSummary(0.9, 0.1, 0.97, 8, 8.0), "warmup": MetricSummary(1.0, 1.0, 1.0, 1)}
    later = {"acc": MetricSummary(0.95, 0.8, 0.96, 4, 12.0), "loss": MetricSummary(nan, nan, nan, 1)}
    run = begin(make_run(), now).run
    run = advance(run, Sighting(gone(run), report(now, Outcome.EVICTED, metrics=first)), now).run
    run = begin(run, now).run
    run = advance(run, Sighting(gone(run), report(now, Outcome.SUCCEEDED, attempt=2, metrics=later)), now).run
    assert run.metrics["acc"] == MetricSummary(0.95, 0.1, 0.97, 12, 12.0)
    assert set(run.metrics) == {"acc", "warmup", "loss"}


def test_metrics_of_an_attempt_that_was_lost_count_once(make_run: Make, now: datetime) -> None:
    seen = {"acc": MetricSummary(0.9, 0.1, 0.97, 8, 8.0)}
    run = begin(make_run(), now).run
    last = replace(report(now, None, metrics=seen), effort=Effort(now))
    run = advance(run, Sighting(gone(run), last), now).run
    for _ in range(2):
        run = with_effort(run, last)
    assert run.metrics == seen


def test_how_often_nodes_go_is_counted_from_what_the_run_has_seen(make_run: Make, now: datetime) -> None:
    run = begin(make_run(), now).run
    assert rate_per_hour(run) is None, "nothing has been seen yet"
    for _ in range(3):
        started, now = now, now + timedelta(hours=1)
        ended = report(now, Outcome.EVICTED, started_at=started, ended_at=now)
        run = begin(advance(run, Sighting(gone(run), ended), now).run, now).run
    assert rate_per_hour(run) == pytest.approx(3.1 / 4), "three in three hours, and a little of what was supposed"


def test_outputs_are_landed_until_they_have_landed(make_run: Make, now: datetime) -> None:
    run = begin(make_run(land_in="there"), now).run
    ended = advance(run, Sighting(gone(run), report(now, Outcome.FAILED, exit_code=1, output_files=2)), now)
    assert ended.actions == (Land(ended.run),)
    assert advance(ended.run, Sighting(), now).actions == (Land(ended.run),)
    assert advance(replace(ended.run, landed="there/ants-1"), Sighting(), now).actions == ()


def test_an_ended_run_never_changes(make_run: Make, now: datetime) -> None:
    run = make_run(state=RunState.FAILED)
    assert advance(run, Sighting(report=report(now, Outcome.SUCCEEDED)), now).run == run
