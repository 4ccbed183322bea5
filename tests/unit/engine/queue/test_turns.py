"""Runs in the queue: who starts, who makes room and comes back, and what the rest is told."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta

from stoker.engine.decision import Sighting
from stoker.engine.lifecycle import begin, evicted
from stoker.engine.nodes.nodes import may_resume
from stoker.engine.queue.clusters import PAUSE_S
from stoker.engine.queue.order import NOTHING_KNOWN, STARVED_S, QueueFacts
from stoker.engine.queue.placement import ahead, place, placed, starting, turns
from stoker.engine.rounds import Scene, decide
from stoker.model.cause import Cause
from stoker.model.node import NodeSight, NodeState
from stoker.model.run.report import Phase, Report
from stoker.model.run.run import AttemptState, Run, RunState

Make = Callable[..., Run]
HERE = {"local": 2}
KNOWN = QueueFacts(seconds={"ants": 600.0})


def working(run: Run, now: datetime, *, saved: bool = True) -> Run:
    begun = begin(run, now).run
    attempt = replace(begun.attempts[-1], state=AttemptState.RUNNING, started_at=now, saved=saved)
    return replace(begun.with_newest(attempt), state=RunState.RUNNING, started_at=now)


def names(runs: list[Run]) -> list[str]:
    return [run.name for run in runs]


def test_people_take_turns(make_run: Make, now: datetime) -> None:
    mine = [replace(make_run(number), person="ada") for number in (1, 2)]
    hers = replace(make_run(3), person="bob")
    assert names(place([*mine, hers], HERE, now)) == ["ants-1", "ants-3"]
    assert names(place([*mine, hers], {"local": 1}, now, facts=QueueFacts(used={"ada": 1e6}))) == ["ants-3"]


def test_a_short_run_starts_while_a_wide_one_waits_for_its_turn(make_run: Make, now: datetime) -> None:
    runs = [working(make_run(1), now), make_run(2, job={"nodes": 2}), make_run(3, job={"time_limit": "5m"})]
    assert names(place(runs, HERE, now, facts=KNOWN)) == ["ants-3"]
    assert place(runs, HERE, now) == [], "nobody knows when the first one ends"


def test_a_run_of_high_priority_pauses_one_of_low_priority_that_has_saved(make_run: Make, now: datetime) -> None:
    low = working(make_run(1, job={"priority": "low"}), now)
    runs = [low, working(make_run(2), now), make_run(3, job={"priority": "high"})]
    found = placed(runs, HERE, {}, now)
    assert [(one.name, other.name) for one, other in found.pauses] == [("ants-1", "ants-3")]
    unsaved = working(make_run(1, job={"priority": "low"}), now, saved=False)
    assert placed([unsaved, *runs[1:]], HERE, {}, now).pauses == ()
    late = now + timedelta(seconds=STARVED_S + 1)
    waited = working(make_run(1, job={"priority": "low"}), late)
    assert placed([waited, *runs[1:]], HERE, {}, late).pauses == (), "it has waited long enough"


def test_a_paused_run_waits_again_and_says_for_whom(make_run: Make, now: datetime) -> None:
    low = working(make_run(1, job={"priority": "low"}), now)
    runs = [low, make_run(3, job={"priority": "high", "nodes": 2})]
    node = NodeSight(low.attempts[-1].key, NodeState.UP)
    seen = {low.id: Sighting(node, Report(1, 0, Phase.RUNNING, now, 5, started_at=now), nodes=(node,))}
    decided = {one.run.id: one.run for one in decide(runs, seen, Scene(HERE, now))}
    told = decided[low.id]
    notice = told.attempts[-1].notice
    assert notice and notice.seconds == PAUSE_S
    after = evicted(told, now).run
    assert (after.state, after.attempts[-1].state) == (RunState.QUEUED, AttemptState.MOVED)
    assert after.cause == Cause.YIELDED and "ants-3" in after.reason
    assert not may_resume(after, node), "its machine is for the other one"
    assert names(place([after, runs[1]], HERE, now)) == ["ants-3"]


def test_a_start_is_told_with_its_time_or_why_that_is_unknown(make_run: Make, now: datetime) -> None:
    runs = [working(make_run(1), now), working(make_run(2), now), make_run(3), make_run(4, job={"nodes": 2})]
    third, fourth = turns(runs, HERE, now, KNOWN)
    assert third.starts_at == now + timedelta(seconds=600)
    assert third.waits_for == "a node: 0 of 2 are free"
    assert fourth.waits_for == "2 nodes: 0 of 2 are free, 1 run is ahead"
    assert fourth.starts_at == now + timedelta(seconds=1200)
    unknown = turns(runs, HERE, now, QueueFacts())[0]
    assert unknown.starts_at is None
    assert unknown.unknown == "ants-1, ants-2: no earlier run has succeeded, and no `time_limit` is set"


def test_a_place_without_a_limit_starts_everything_at_once(make_run: Make, now: datetime) -> None:
    assert starting([make_run(1), make_run(2)], {"local": None}, now) == {make_run(1).id: 0.0, make_run(2).id: 0.0}


def test_how_many_are_ahead_is_counted_in_turns_between_people(make_run: Make, now: datetime) -> None:
    mine = [make_run(number, person="ada") for number in (1, 2, 3)]
    other = make_run(4, person="bob")
    assert ahead([*mine, other], {"local": 1}, now) == {mine[0].id: 0, other.id: 1, mine[1].id: 2, mine[2].id: 3}


def test_the_turns_of_many_runs_are_told_without_asking_each_of_them_about_all_others(
    make_run: Make, now: datetime
) -> None:
    """Ten thousand runs took a minute, during which the server answered nobody."""

    def took_s(waiting: int) -> float:
        runs = [make_run(number, job={"on": "local"}) for number in range(waiting)]
        began = time.process_time()
        found = turns(runs, {"local": 1}, now, NOTHING_KNOWN)
        took_s = time.process_time() - began
        assert [one.unknown[:22] for one in found[1:3]] == ["ants-0: no earlier run", "ants-0, ants-1: no ear"]
        return took_s

    few, many = min(took_s(300) for _ in range(3)), min(took_s(3000) for _ in range(3))
    assert many < 30 * few, f"{few:.3f} s for 300 runs, {many:.3f} s for 3,000"
