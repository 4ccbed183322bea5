"""Whole lives of runs, from a seed, in a world where everything that can break does."""

from decimal import Decimal

import pytest

from stoker.model.job.job import Job, Spot
from stoker.model.run.run import RunState
from stoker.testing.world.__main__ import described
from stoker.testing.world.drawing import away, broken, calm, shared, shrunk, stormy, story
from stoker.testing.world.scenario import MarketPlace, Mishap, MishapKind, RunPlan, Scenario
from stoker.testing.world.world import World

LIVES = 5_000
MANY_LIVES = 100_000
BLOCKS = 20


def survive(first: int, lives: int) -> None:
    """Worlds from this seed on, until so many runs have lived. Tells the smallest world that fails."""
    seed = first
    while lives > 0:
        scenario = stormy(seed)
        if found := broken(scenario):
            smallest = shrunk(scenario, found.promise)
            lines = [*described(smallest), *story(smallest), f"again: python -m stoker.testing.world {seed}"]
            pytest.fail("\n".join([f"seed {seed}: {found}", *lines]), pytrace=False)
        lives -= len(scenario.plans)
        seed += 1


@pytest.mark.parametrize("block", range(BLOCKS))
def test_every_promise_is_kept_whatever_breaks(block: int) -> None:
    survive(block * LIVES, LIVES // BLOCKS)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("block", range(BLOCKS))
def test_every_promise_is_kept_for_a_hundred_thousand_lives(block: int) -> None:
    survive(1_000_000 + block * MANY_LIVES, MANY_LIVES // BLOCKS)


@pytest.mark.parametrize("block", range(4))
def test_every_promise_is_kept_while_the_server_is_away_for_hours(block: int) -> None:
    for seed in range(block * 15, block * 15 + 15):
        found = broken(away(seed))
        assert found is None, f"{found}: python -m stoker.testing.world {seed} --away"


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("block", range(BLOCKS))
def test_every_promise_is_kept_for_thousands_of_lives_without_a_server(block: int) -> None:
    for seed in range(10_000 + block * 250, 10_000 + block * 250 + 250):
        found = broken(away(seed))
        assert found is None, f"{found}: python -m stoker.testing.world {seed} --away"


def test_a_run_of_hours_ends_without_a_server_although_its_machine_is_evicted_twice() -> None:
    job = Job(name="ants", run="true", on="cloud", spot=Spot())
    evictions = (Mishap(3600.0, MishapKind.EVICTION), Mishap(7200.0, MishapKind.EVICTION, seconds=30.0))
    absent = Mishap(600.0, MishapKind.CRASH, seconds=20 * 3600.0)
    place = MarketPlace("here", Decimal("0.10"), spot=True)
    scenario = Scenario(1, (RunPlan(job, work_s=4 * 3600.0),), (absent, *evictions), (place,), restore_s=300.0)
    world = World(scenario).live()
    (run,) = world.server.saved.values()
    assert (run.state, len(run.attempts)) == (RunState.SUCCEEDED, 1)
    agent = world.agents[run.attempts[0].key]
    assert agent.incarnation == 3
    assert agent.ended_at is not None
    assert agent.ended_at < 600 + 5 * 3600, "long before the server was back"


@pytest.mark.parametrize("seed", [1_447, 2_471, 1_601_899, 2_201_663, 2_301_522, 2_501_621, 2_801_725])
def test_worlds_that_once_broke_a_promise_keep_it(seed: int) -> None:
    """Unreachable machines next to those that continue, prices that change for ended runs, machines that were removed
    by their own budget limit before their first report; a machine that started while nobody could look, and one
    requested in advance whose orders could not be written at first."""
    assert broken(stormy(seed)) is None


@pytest.mark.parametrize("cloud", [False, True])
def test_nothing_happens_to_a_run_in_calm_weather(cloud: bool) -> None:
    for seed in range(50):
        scenario = calm(seed, cloud=cloud)
        (run,) = World(scenario).live().server.saved.values()
        assert (len(run.attempts), run.exit_code) == (1, 0)


def test_the_same_seed_gives_the_same_story() -> None:
    assert story(stormy(7)) == story(stormy(7))


def test_every_fault_is_drawn() -> None:
    def faults(scenario: Scenario) -> set[MishapKind]:
        return {mishap.fault for mishap in scenario.mishaps}

    assert set().union(*(faults(draw(seed)) for draw in (stormy, shared) for seed in range(200))) == set(MishapKind)
