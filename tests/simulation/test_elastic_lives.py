"""Whole lives of runs with ranges of nodes: they shrink and grow within their range, and all their work is done."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from functools import partial

import pytest

from stoker.engine.decision import Decision
from stoker.engine.nodes import elastic
from stoker.model.job.job import Job, Spot
from stoker.model.job.values import NodeRange
from stoker.model.node import Offer
from stoker.model.run.run import Attempt, Run, RunState
from stoker.testing.world.__main__ import described
from stoker.testing.world.agent import Agent
from stoker.testing.world.drawing import broken, gangs, shared, shrunk, story
from stoker.testing.world.scenario import MarketPlace, RunPlan, Scenario
from stoker.testing.world.world import World

WORLDS = 4
MANY_WORLDS, MANY_BLOCKS = 10_000, 20

DRAWS = {"gangs": partial(gangs, elastic=True), "shared": partial(shared, elastic=True)}


def survive(kind: str, first: int, worlds: int) -> None:
    for seed in range(first, first + worlds):
        drawn = DRAWS[kind](seed)
        if found := broken(drawn):
            smallest = shrunk(drawn, found.promise)
            again = f"again: python -m stoker.testing.world {seed} --{kind} --elastic"
            pytest.fail("\n".join([f"seed {seed}: {found}", *described(smallest), *story(smallest), again]))


@pytest.mark.parametrize("kind", DRAWS)
def test_every_promise_is_kept_by_runs_with_ranges_of_nodes(kind: str) -> None:
    survive(kind, 0, WORLDS)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", DRAWS)
@pytest.mark.parametrize("block", range(MANY_BLOCKS))
def test_every_promise_is_kept_by_thousands_of_runs_with_ranges_of_nodes(kind: str, block: int) -> None:
    survive(kind, 1_000_000 + block * MANY_WORLDS, MANY_WORLDS // MANY_BLOCKS)


def scarce(taken: int = 2, work_s: float = 1800.0) -> Scenario:
    """Another run has some of five nodes for ten minutes, when one that prefers four comes."""
    job = Job(name="ants", run="true", on="cloud", nodes=taken, spot=Spot())
    ranged = Job(name="bees", run="true", on="cloud", nodes=NodeRange(2, 4), spot=Spot())
    plans = RunPlan(job, work_s=600.0), RunPlan(ranged, at=5.0, work_s=work_s)
    return Scenario(1, plans, places=(MarketPlace("here", Decimal("0.10"), spot=True, capacity=5),))


def test_a_run_starts_with_fewer_nodes_and_grows_and_all_its_work_is_done() -> None:
    world = World(scarce()).live()
    _, run = world.server.saved.values()
    assert run.state is RunState.SUCCEEDED
    assert [len(one.members) for one in run.attempts if one.started_at] == [3, 4]
    head = world.shelf(run.id).head
    assert head is not None and head.done_s == pytest.approx(1800.0)


@pytest.mark.parametrize(
    ("seed", "why"),
    [
        (5_500_308, "its script failed, seven of its eight nodes stayed, and their place has no more"),
        (5_500_438, "its first node was kept in a place other than the one that refused the third and fourth"),
        (5_500_491, "its only place, which had refused it for another reason an hour ago, had no capacity"),
    ],
)
def test_a_run_does_not_request_refused_machines_again_and_again(seed: int, why: str) -> None:
    world = World(gangs(seed, elastic=True)).live()
    assert max(len(run.attempts) for run in world.server.saved.values()) < 30, why


def test_a_gang_that_forgets_which_of_its_nodes_was_refused_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert broken(gangs(5_500_494, elastic=True)) is None
    monkeypatch.setattr(Attempt, "troubled", property(lambda attempt: (attempt,) if attempt.trouble else ()))
    found = broken(gangs(5_500_494, elastic=True))
    assert found is not None and found.promise == "paced requests"


def test_a_run_that_starts_below_its_minimum_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert broken(scarce(taken=4)) is None
    monkeypatch.setattr(elastic, "widths", lambda run, _room: range(run.job.most_nodes, 0, -1))
    monkeypatch.setattr(elastic, "_left", lambda asked, _refused: asked // 4)
    monkeypatch.setattr(elastic, "_is_least", lambda _run, nodes: nodes == 1)
    found = broken(scarce(taken=4))
    assert found is not None and found.promise == "as many nodes as the job says"


def test_a_run_that_grows_past_its_maximum_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = elastic._asked

    def more(run: Run, attempt: Attempt, offer: Offer, count: int, now: datetime) -> Decision:
        return asked(run, attempt, offer, count + 1, now)

    monkeypatch.setattr(elastic, "_asked", more)
    found = broken(scarce())
    assert found is not None and found.promise == "as many nodes as the job says"


def test_fewer_nodes_that_skip_the_work_of_the_missing_ones_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    complete = Agent.complete

    def skipping(agent: Agent, done_s: float) -> None:
        assert agent.gang is not None
        complete(agent, done_s * agent.gang.nodes / agent.plan.job.most_nodes)

    monkeypatch.setattr(Agent, "complete", skipping)
    found = broken(scarce(work_s=100.0))
    assert found is not None and found.promise == "the whole work"
