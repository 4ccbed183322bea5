"""A node reports something else at every heartbeat: the server's records stay small, and the rest is counted."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from stoker.engine.decision import Sighting
from stoker.engine.lifecycle import LONGEST_WORDS, MOST_NOTICES, advance, begin
from stoker.engine.patience import MOST_HASTY
from stoker.errors import Malformed
from stoker.model import untrusted, wire
from stoker.model.cause import Cause
from stoker.model.node import NodeSight, NodeState
from stoker.model.orders import Notice
from stoker.model.run.report import Climb, Effort, Kept, Measured, MetricSummary, Outcome, Phase, Report
from stoker.model.run.run import Attempt, AttemptState, Event, Run, RunState
from stoker.model.workspace import layout
from stoker.server.records.database import MOST_OF_A_KIND, Database
from stoker.server.rounds.reports import MOST_EVENTS, agent_events
from stoker.server.rounds.reports import MOST_OF_A_KIND as MOST_OF_AN_AGENT
from stoker.testing.fakes import MemoryStore

Make = Callable[..., Run]
REPORT = Report(1, 0, Phase.RUNNING, datetime(2026, 3, 1, 12, tzinfo=UTC), 1)


def seen(run: Run, now: datetime, **facts: Any) -> Sighting:
    said = replace(REPORT, attempt=len(run.attempts), at=now, started_at=now, **facts)
    return Sighting(NodeSight(run.attempts[-1].key, NodeState.UP), said)


def flip(run: Run, now: datetime, beats: int, beat_s: float) -> tuple[Run, list[Event]]:
    """Its report has a notice at every second beat."""
    events: list[Event] = []
    for beat in range(beats):
        at = now + timedelta(seconds=beat * beat_s)
        notice = Notice(at, at + timedelta(days=1), drill=False) if beat % 2 else None
        decision = advance(run, seen(run, at, notice=notice), at)
        run, events = decision.run, [*events, *decision.events]
    return run, events


def test_a_notice_that_comes_and_goes_at_every_beat_is_soon_not_believed(make_run: Make, now: datetime) -> None:
    run = begin(make_run(), now).run
    after, events = flip(run, now, 1000, 2.0)
    kinds = [event.kind for event in events]
    assert MOST_NOTICES <= kinds.count("notice") <= MOST_NOTICES + 1
    assert kinds.count("notice-withdrawn") <= MOST_NOTICES + 1
    assert (after.state, after.attempts[-1].notice) == (RunState.RUNNING, None)


def test_notices_of_a_long_run_are_believed_as_ever(make_run: Make, now: datetime) -> None:
    _, events = flip(begin(make_run(), now).run, now, 200, 3600.0)
    assert [event.kind for event in events].count("notice") == 100


def test_a_node_that_says_it_was_evicted_whenever_it_has_started_is_not_replaced_for_ever(
    make_run: Make, now: datetime
) -> None:
    run = make_run()
    for _ in range(MOST_HASTY + 5):
        if run.state.ended:
            break
        run = begin(run, now).run
        now += timedelta(seconds=5)
        run = advance(run, seen(run, now, outcome=Outcome.EVICTED, ended_at=now, message="x" * 30_000), now).run
    assert (run.state, len(run.attempts), run.exit_code) == (RunState.FAILED, MOST_HASTY, 125)
    assert run.cause == Cause.ENDED_AT_ONCE
    assert len(wire.dump(run)) < MOST_HASTY * (LONGEST_WORDS + 2000)


@pytest.mark.parametrize("ahead", [timedelta(days=300), timedelta(minutes=-30), timedelta(days=-9000)])
def test_a_nodes_clock_neither_hides_how_soon_it_was_evicted_nor_lengthens_its_run(
    make_run: Make, now: datetime, ahead: timedelta
) -> None:
    submitted, run = now, make_run()
    for _ in range(MOST_HASTY + 5):
        if run.state.ended:
            break
        run = begin(run, now).run
        now += timedelta(seconds=5)
        said = seen(run, now + ahead, outcome=Outcome.EVICTED, ended_at=now + 2 * ahead)
        run = advance(run, said, now).run
    assert (run.state, len(run.attempts)) == (RunState.FAILED, MOST_HASTY)
    times = [time for one in run.attempts for time in (one.asked_at, one.started_at, one.ended_at)]
    assert None not in times
    assert times == sorted(times, key=str)
    assert run.started_at is not None
    assert submitted <= run.started_at <= now


@pytest.mark.parametrize("outcome", [Outcome.CANCELLED, None], ids=["shut down", "killed"])
def test_a_node_that_ends_at_once_again_and_again_is_not_started_for_ever_whatever_it_says_it_has_saved(
    make_run: Make, now: datetime, outcome: Outcome | None
) -> None:
    run = make_run()
    for _ in range(MOST_HASTY + 5):
        if run.state.ended:
            break
        run = begin(run, now).run
        now += timedelta(seconds=5)
        said = seen(run, now, effort=Effort(now, kept=Kept(len(run.attempts), 1, now)), outcome=outcome)
        if outcome is None:
            said = replace(said, node=NodeSight(run.attempts[-1].key, NodeState.GONE, "its agent died"))
        run = advance(run, said, now).run
    assert (run.state, len(run.attempts), run.exit_code) == (RunState.FAILED, MOST_HASTY, 125)


def test_a_nodes_clock_that_is_wrong_starts_no_script_before_its_node(make_run: Make, now: datetime) -> None:
    run = begin(make_run(), now).run
    later = now + timedelta(seconds=20)
    run = advance(run, seen(run, now - timedelta(days=1)), later).run
    assert (run.state, run.started_at, run.attempts[-1].started_at) == (RunState.RUNNING, now, now)


def test_evictions_after_an_hour_each_go_on_for_as_long_as_they_come(make_run: Make, now: datetime) -> None:
    run = make_run()
    for _ in range(2 * MOST_HASTY):
        run = begin(run, now).run
        now += timedelta(hours=1)
        run = advance(run, seen(run, now, outcome=Outcome.EVICTED, ended_at=now), now).run
    assert run.state is RunState.QUEUED


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database.open(tmp_path / "stoker.db")


def test_a_timeline_keeps_the_first_and_the_newest_of_a_kind_and_counts_the_rest(
    database: Database, make_run: Make, now: datetime
) -> None:
    run = database.add(make_run(), "one", [Event(now, "submitted", "submitted")])
    for number in range(500):
        database.save([(run, [Event(now, "notice", f"notice {number}"), Event(now, "back", f"back {number}")])])
    events = database.events(run.id)
    assert len(events) == 2 * MOST_OF_A_KIND + 2
    assert [event.text for event in events[:3]] == ["submitted", "notice 0", "back 0"]
    assert [event.text for event in events[-2:]] == ["notice 499", "back 499"]
    assert [event.text for event in events if event.kind == "left-out"] == ["600 more such events were omitted"]
    database.save([(run, [Event(now, "failed", "x" * 100_000)])])
    assert len(database.events(run.id)[-1].text) < 10_000


def test_the_events_of_an_agent_are_bounded_by_kind_and_in_all(now: datetime) -> None:
    store = MemoryStore()
    said = [Event(now, "checkpoint-left-out", "y" * 30_000)] * (MOST_OF_AN_AGENT + 7)
    said += [Event(now, f"kind {number}" + "k" * 1000, "z") for number in range(MOST_EVENTS)]
    store.put(layout.events("r", 1), b"".join(wire.dump(one) + b"\n" for one in said))
    *found, last = agent_events(store, "r", Attempt(1, "r-1", AttemptState.RUNNING, now), now)
    assert len(found) == MOST_EVENTS
    assert max(len(one.kind) for one in found) <= 40
    assert last.text == f"attempt 1: {MOST_OF_AN_AGENT + 7} more such events were omitted"
    assert len(wire.dump((*found, last))) < 2_000_000


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"metrics": {f"m{number}": MetricSummary(1, 1, 1, 1) for number in range(1001)}}, "a mapping of at most 1000"),
        ({"metrics": {"m" * 401: MetricSummary(1, 1, 1, 1)}}, "a text of at most 400 characters"),
        ({"log_bytes": {str(number): 1 for number in range(10_001)}}, "a mapping of at most 10000"),
        ({"effort": Effort(REPORT.at, climbs=(Climb("step", (1.0,) * 101),))}, "a list of at most 100"),
        ({"effort": Effort(REPORT.at, climbs=(Climb("step"),) * 17)}, "a list of at most 16"),
    ],
)
def test_a_report_with_more_than_any_agent_says_is_refused(change: dict[str, Any], why: str, now: datetime) -> None:
    with pytest.raises(Malformed, match=why):
        untrusted.load(Report, wire.dump(replace(REPORT, **change)), now)


def test_a_point_with_too_many_or_too_long_names_is_refused(now: datetime) -> None:
    for values in ({f"m{number}": 1.0 for number in range(10_001)}, {"m" * 401: 1.0}):
        line = json.dumps({"at": 1.0, "rank": 0, "values": values}).encode()
        with pytest.raises(Malformed, match="at most"):
            untrusted.load(Measured, line, now)
