"""Whole lives of runs with several nodes: no half gang works, and losing a node costs neither the others nor a step."""

from __future__ import annotations

from decimal import Decimal

import pytest

from stoker.engine.money import fuse
from stoker.model.job.job import Job, Spot
from stoker.model.run.run import Run, RunState
from stoker.testing.world.__main__ import described
from stoker.testing.world.drawing import broken, gangs, shrunk, story
from stoker.testing.world.gang import WorldGang
from stoker.testing.world.real.world import RealWorld
from stoker.testing.world.scenario import MarketPlace, Mishap, MishapKind, RunPlan, Scenario
from stoker.testing.world.world import World

WORLDS, BLOCKS = 40, 4
MANY_WORLDS, MANY_BLOCKS = 50_000, 50
REAL_WORLDS, MANY_REAL_WORLDS, MANY_REAL_BLOCKS = 8, 4_000, 40

Kind = type[World]


def survive(first: int, worlds: int, kind: Kind = World) -> None:
    for seed in range(first, first + worlds):
        if found := broken(gangs(seed), kind):
            smallest = shrunk(gangs(seed), found.promise, kind)
            real = " --real" if kind is RealWorld else ""
            again = f"again: python -m stoker.testing.world {seed} --gangs{real}"
            pytest.fail("\n".join([f"seed {seed}: {found}", *described(smallest), *story(smallest, kind), again]))


@pytest.mark.parametrize("block", range(BLOCKS))
def test_every_promise_is_kept_by_gangs(block: int) -> None:
    survive(block * 1_000, WORLDS // BLOCKS)


@pytest.mark.heavy
def test_every_promise_is_kept_by_gangs_and_the_real_server() -> None:
    survive(0, REAL_WORLDS, RealWorld)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("block", range(MANY_BLOCKS))
def test_every_promise_is_kept_by_a_hundred_thousand_gangs(block: int) -> None:
    survive(1_000_000 + block * MANY_WORLDS, MANY_WORLDS // MANY_BLOCKS)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("block", range(MANY_REAL_BLOCKS))
def test_every_promise_is_kept_by_thousands_of_gangs_and_the_real_server(block: int) -> None:
    survive(1_000_000 + block * MANY_REAL_WORLDS, MANY_REAL_WORLDS // MANY_REAL_BLOCKS, RealWorld)


def scenario(*plans: RunPlan, mishaps: tuple[Mishap, ...] = (), capacity: int | None = None) -> Scenario:
    place = MarketPlace("here", Decimal("0.10"), spot=True, capacity=capacity)
    return Scenario(1, plans, mishaps, (place,))


def plan(
    nodes: int, at: float = 0.0, work_s: float = 600.0, budget: str = "", shards: bool = False, peers_fail: bool = True
) -> RunPlan:
    limit = Decimal(budget) if budget else None
    job = Job(name="ants", run="true", on="cloud", nodes=nodes, spot=Spot(), budget=limit)
    return RunPlan(job, at=at, work_s=work_s, shards=shards, peers_fail=peers_fail)


def lived(world: World) -> tuple[list[Run], World]:
    return list(world.live().server.saved.values()), world


@pytest.mark.parametrize("kind", [World, RealWorld])
def test_the_others_keep_their_machines_when_one_is_evicted(kind: Kind) -> None:
    evicted = Mishap(300.0, MishapKind.EVICTION, where=2)
    (run,), world = lived(kind(scenario(plan(4, shards=True), mishaps=(evicted,))))
    assert (run.state, len(run.attempts)) == (RunState.SUCCEEDED, 2)
    again = [bool(one.offer and one.offer.again) for one in run.attempts[1].members]
    assert again == [True, True, False, True]
    assert [gang.script.done_s for gang in world.gangs] == [pytest.approx(278.0, abs=5.0), 600.0]


def test_with_notice_no_step_is_repeated() -> None:
    evicted = Mishap(300.0, MishapKind.EVICTION, where=2, seconds=30.0)
    (run,), world = lived(World(scenario(plan(4, shards=True), mishaps=(evicted,))))
    first, second = world.gangs
    assert run.state is RunState.SUCCEEDED
    assert {agent.parent.done_s for agent in second.agents.values() if agent.parent} == {first.script.done_s}


@pytest.mark.parametrize("kind", [World, RealWorld])
def test_a_node_that_is_lost_while_the_others_meet_is_replaced(kind: Kind) -> None:
    lost = Mishap(20.5, MishapKind.DEATH, where=1)
    (run,), _ = lived(kind(scenario(plan(4, peers_fail=False), mishaps=(lost,))))
    assert run.state is RunState.SUCCEEDED


def test_two_gangs_that_do_not_fit_together_run_one_after_the_other() -> None:
    runs, _ = lived(World(scenario(plan(4), plan(4, at=1.0), capacity=6)))
    assert [run.state for run in runs] == [RunState.SUCCEEDED] * 2
    assert max(run.ended_at - runs[0].submitted_at for run in runs if run.ended_at).total_seconds() < 2 * 600 + 900


def test_a_budget_that_pays_for_three_of_four_starts_none() -> None:
    (run,), world = lived(World(scenario(plan(4, budget="0.01"))))
    assert run.budget is not None and run.budget > Decimal("0.01"), "somebody had to raise it first"
    assert {len(one.members) for one in run.attempts} == {4}
    assert world.cloud.bill(run.id) <= float(run.budget)


def test_a_gang_of_sixty_four_nodes_survives_the_loss_of_one_and_of_its_server() -> None:
    mishaps = (Mishap(200.0, MishapKind.EVICTION, where=40), Mishap(205.0, MishapKind.CRASH, seconds=60.0, where=3))
    (run,), world = lived(World(scenario(plan(64, shards=True), mishaps=mishaps)))
    assert (run.state, len(run.attempts)) == (RunState.SUCCEEDED, 2)
    assert not world.cloud.machines


def test_a_gang_that_may_lose_a_node_and_work_on_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WorldGang, "leave", lambda gang, node: gang.at_work.discard(node))
    lost = Mishap(300.0, MishapKind.DEATH, where=2)
    found = broken(scenario(plan(4, peers_fail=False), mishaps=(lost,)))
    assert found is not None and found.promise == "no half gang works"


def test_a_gang_that_replaces_a_lost_node_with_money_that_it_has_not_passes_its_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert broken(gangs(30_000_677)) is None

    def of_its_own_too(run: Run) -> bool:
        costing = [one for one in run.spells if one.until is None]
        return bool(fuse._working_rate(run)) and any(fuse._works_on(run, one) for one in costing)

    monkeypatch.setattr(fuse, "_abandoned", of_its_own_too)
    found = broken(gangs(30_000_677))
    assert found is not None and found.promise == "the budget"
