"""Which queued runs start now."""

from collections.abc import Callable
from datetime import datetime, timedelta

from stoker.engine.decision import Sighting
from stoker.engine.lifecycle import advance, begin
from stoker.engine.nodes.nodes import GRACE_S, claimed, release_leftovers
from stoker.engine.queue.placement import busy_slots, place, why_waiting
from stoker.model.node import NodeSight, NodeState
from stoker.model.run.run import Run

Make = Callable[..., Run]


def names(runs: list[Run]) -> list[str]:
    return [run.name for run in runs]


def test_runs_start_in_the_order_they_were_submitted(make_run: Make, now: datetime) -> None:
    assert names(place([make_run(3), make_run(1), make_run(2)], {"local": 2}, now)) == ["ants-1", "ants-2"]


def test_a_high_priority_goes_first_and_a_low_one_last(make_run: Make, now: datetime) -> None:
    runs = [make_run(1, job={"priority": "low"}), make_run(2), make_run(3, job={"priority": "high"})]
    assert names(place(runs, {"local": 9}, now)) == ["ants-3", "ants-2", "ants-1"]


def test_what_is_under_way_takes_its_slots(make_run: Make, now: datetime) -> None:
    runs = [begin(make_run(1), now).run, make_run(2), make_run(3)]
    assert names(place(runs, {"local": 2}, now)) == ["ants-2"]


def test_a_wide_run_is_not_starved_by_narrow_ones(make_run: Make, now: datetime) -> None:
    runs = [begin(make_run(1), now).run, make_run(2, job={"nodes": 2}), make_run(3)]
    assert place(runs, {"local": 2}, now) == []


def test_a_provider_without_a_known_limit_takes_everything(make_run: Make, now: datetime) -> None:
    assert len(place([make_run(n) for n in range(1, 50)], {"local": None}, now)) == 49


def test_a_provider_that_is_not_there_takes_nothing(make_run: Make, now: datetime) -> None:
    assert place([make_run()], {}, now) == []


def test_a_run_waits_for_the_nodes_of_its_earlier_attempts_to_be_gone(make_run: Make, now: datetime) -> None:
    assert place([make_run()], {"local": 1}, now, held={make_run().id}) == []


def test_a_machine_that_keeps_losing_agents_is_not_hammered(make_run: Make, now: datetime) -> None:
    run = make_run()
    for _ in range(4):
        run = begin(run, now).run
        run = advance(run, Sighting(NodeSight(run.attempts[-1].key, NodeState.GONE)), now).run
    assert place([run], {"local": 1}, now) == []
    assert place([run], {"local": 1}, now + timedelta(seconds=4)) == [run]


def test_a_clock_that_was_set_back_does_not_hold_up_a_run(make_run: Make, now: datetime) -> None:
    run = make_run()
    for _ in range(3):
        run = begin(run, now).run
        run = advance(run, Sighting(NodeSight(run.attempts[-1].key, NodeState.GONE)), now).run
    assert place([run], {"local": 1}, now - timedelta(hours=1)) == [run]


def test_nodes_that_nobody_claims_are_released(make_run: Make, now: datetime) -> None:
    mine = begin(make_run(1), now).run
    sights = [
        NodeSight(mine.attempts[-1].key, NodeState.UP),
        NodeSight("dead", NodeState.GONE),
        NodeSight("tidying", NodeState.UP),
        NodeSight("stray", NodeState.UP),
    ]
    ages = {"dead": 0.0, "tidying": 1.0, "stray": GRACE_S + 1}
    stops = release_leftovers("local", sights, claimed([mine]), ages)
    assert [stop.key for stop in stops] == ["dead", "stray"]


def test_a_run_that_waits_can_say_what_for(make_run: Make, now: datetime) -> None:
    runs = [begin(make_run(1), now).run, begin(make_run(2), now).run, make_run(3), make_run(4)]
    assert busy_slots(runs, {"local": 2, "ssh": 1}) == {"local": 2, "ssh": 0}
    assert why_waiting(runs[3], 1, 2, {"local": 2}) == "2 of 2 slots are busy, 1 ahead"
    assert why_waiting(runs[2], 0, 2, {"local": 3}) == "", "it is about to start"
    assert why_waiting(runs[3], 1, 2, {"local": None}) == ""
