"""Whole lives of runs that share clusters: priorities, idle nodes, pauses, and everything that can break."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest

from stoker.engine.queue import clusters, placement
from stoker.engine.queue.order import Packed
from stoker.model.job.job import Job, Priority
from stoker.model.node import Cluster
from stoker.model.run.run import RunState
from stoker.testing.world.__main__ import described
from stoker.testing.world.drawing import broken, shared, shrunk, story
from stoker.testing.world.real.world import RealWorld
from stoker.testing.world.scenario import MarketPlace, Mishap, MishapKind, RunPlan, Scenario
from stoker.testing.world.world import World

WORLDS, BLOCKS = 60, 4
MANY_WORLDS, MANY_BLOCKS = 30_000, 60  # about 100,000 runs
REAL_WORLDS, MANY_REAL_WORLDS, MANY_REAL_BLOCKS = 10, 2_000, 40

Kind = type[World]


def survive(first: int, worlds: int, kind: Kind = World) -> None:
    for seed in range(first, first + worlds):
        if found := broken(shared(seed), kind):
            smallest = shrunk(shared(seed), found.promise, kind)
            real = " --real" if kind is RealWorld else ""
            again = f"again: python -m stoker.testing.world {seed} --shared{real}"
            pytest.fail("\n".join([f"seed {seed}: {found}", *described(smallest), *story(smallest, kind), again]))


@pytest.mark.parametrize("block", range(BLOCKS))
def test_every_promise_is_kept_in_clusters(block: int) -> None:
    survive(block * 1_000, WORLDS // BLOCKS)


@pytest.mark.heavy
@pytest.mark.timeout(600)
def test_every_promise_is_kept_in_clusters_by_the_real_server() -> None:
    survive(0, REAL_WORLDS, RealWorld)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("block", range(MANY_BLOCKS))
def test_every_promise_is_kept_in_clusters_for_a_hundred_thousand_lives(block: int) -> None:
    survive(1_000_000 + block * MANY_WORLDS, MANY_WORLDS // MANY_BLOCKS)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("block", range(MANY_REAL_BLOCKS))
def test_every_promise_is_kept_in_clusters_by_the_real_server_for_thousands_of_lives(block: int) -> None:
    survive(1_000_000 + block * MANY_REAL_WORLDS, MANY_REAL_WORLDS // MANY_REAL_BLOCKS, RealWorld)


@pytest.mark.parametrize("seed", [1_003, 24, 7_000_328, 81, 185, 240, 1_001, 5_000_261, 5_001_660])
def test_worlds_that_once_broke_a_promise_keep_it(seed: int) -> None:
    """A run that cannot pay for its offers, next to one whose cheaper offers it took for its own: it was not
    paused, and kept the only place of its cluster. A node that was still being released while the next run got a
    new one, after a pause or an end; a notice that was withdrawn after a replacement was requested; a gang that
    moved elsewhere with its machines still there; an idle node released at once; a gang that waits for a moment, with
    the replacement of its lost first node; a run that waited for spot which its provider had refused."""
    assert broken(shared(seed)) is None


def scenario(*plans: RunPlan, nodes: int = 1, idle_s: float = 300.0) -> Scenario:
    pool = Cluster("pool", "cloud", nodes, idle_s=idle_s)
    return Scenario(1, plans, places=(MarketPlace("here", Decimal("0.10"), spot=False),), clusters=(pool,))


def plan(at: float, work_s: float = 600.0, priority: Priority = Priority.NORMAL) -> RunPlan:
    job = Job(name="ants", run="true", on="cloud", priority=priority)
    return RunPlan(job, at=at, work_s=work_s, cluster="pool")


@pytest.mark.parametrize("kind", [World, RealWorld])
def test_a_warm_node_takes_the_next_run_and_is_released_when_its_time_is_up(kind: Kind) -> None:
    world = kind(scenario(plan(0.0), plan(700.0))).live()
    first, second = world.server.saved.values()
    assert second.attempts[0].offer is not None and second.attempts[0].offer.waits == first.attempts[0].key
    assert first.idle[0].released == clusters.TAKEN
    assert second.idle[0].released.startswith("idle for 30")


@pytest.mark.parametrize("kind", [World, RealWorld])
def test_the_nodes_of_a_gang_take_the_next_gang(kind: Kind) -> None:
    job = Job(name="ants", run="true", on="cloud", nodes=2)
    plans = [RunPlan(job, at=at, work_s=600.0, cluster="pool") for at in (0.0, 700.0)]
    world = kind(scenario(*plans, nodes=2)).live()
    first, second = world.server.saved.values()
    assert {first.state, second.state} == {RunState.SUCCEEDED}
    waits = {one.offer.waits for one in second.attempts[0].members if one.offer}
    assert waits == {member.key for member in first.attempts[0].members}
    assert [one.released for one in first.idle] == [clusters.TAKEN] * 2
    assert all(one.released.startswith("idle for 30") for one in second.idle)


@pytest.mark.parametrize("kind", [World, RealWorld])
def test_a_run_of_low_priority_makes_room_and_loses_nothing(kind: Kind) -> None:
    world = kind(scenario(plan(0.0, 3600.0, Priority.LOW), plan(1000.0, 300.0, Priority.HIGH))).live()
    low, high = world.server.saved.values()
    assert [one.yielded for one in low.attempts] == [high.name, ""]
    assert {low.state, high.state} == {RunState.SUCCEEDED}
    assert high.ended_at is not None and low.ended_at is not None and high.ended_at < low.ended_at


def test_a_cluster_that_takes_more_runs_than_it_has_nodes_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusters, "rooms", lambda facts: dict.fromkeys(facts.known, 9))
    monkeypatch.setattr(clusters, "making_room", lambda *_: clusters.Making())
    found = broken(scenario(plan(0.0), plan(60.0)))
    assert found is not None and found.promise == "no oversubscription"


def test_an_idle_node_that_nobody_releases_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusters, "releasing", lambda *_: iter(()))
    found = broken(scenario(plan(0.0)))
    assert found is not None and found.promise == "no idle node beyond its time"


def test_a_run_that_never_gets_its_turn_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "pack", lambda *_: Packed())
    found = broken(scenario(plan(0.0)))
    assert found is not None and found.promise == "no starvation"


@pytest.mark.parametrize("kind", [World, RealWorld])
@pytest.mark.parametrize("nodes", [1, 2])
def test_runs_of_a_paused_cluster_give_their_nodes_back_and_resume_where_they_were(kind: Kind, nodes: int) -> None:
    job = Job(name="ants", run="true", on="cloud", nodes=nodes)
    pause = Mishap(1000.0, MishapKind.CLUSTER_PAUSED, 0, seconds=4000.0)
    world = kind(replace(scenario(RunPlan(job, work_s=3600.0, cluster="pool"), nodes=2), mishaps=(pause,))).live()
    (run,) = world.server.saved.values()
    assert run.state is RunState.SUCCEEDED and [one.paused for one in run.attempts] == ["pool", ""]
    paused, resumed = run.attempts
    assert paused.ended_at and (resumed.asked_at - paused.ended_at).total_seconds() > 3600
    assert all(spell.until and spell.until < resumed.asked_at for spell in run.spells[:nodes]), "zero nodes meanwhile"


def test_a_node_that_stays_in_a_paused_cluster_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusters, "vacated", lambda *_: None)
    pause = Mishap(1000.0, MishapKind.CLUSTER_PAUSED, 0, seconds=20_000.0)
    found = broken(replace(scenario(plan(0.0, 36_000.0)), mishaps=(pause,)))
    assert found is not None and found.promise == "a paused cluster has no nodes"
