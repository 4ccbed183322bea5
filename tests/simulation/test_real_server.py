"""Whole lives of runs with the real reconciler, performer, ledger and database, on a virtual clock and event loop."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from stoker.testing.world.__main__ import described
from stoker.testing.world.drawing import away, broken, calm, shrunk, stormy, story
from stoker.testing.world.real.loop import VirtualLoop
from stoker.testing.world.real.world import RealWorld
from stoker.testing.world.scenario import Timeline

LIVES, BLOCKS = 1000, 10
MANY_LIVES, MANY_BLOCKS = 20_000, 40


def survive(first: int, lives: int) -> None:
    """Worlds from this seed on, until so many runs have lived. Tells the smallest world that fails."""
    seed = first
    while lives > 0:
        scenario = stormy(seed)
        if found := broken(scenario, RealWorld):
            smallest = shrunk(scenario, found.promise, RealWorld)
            again = f"again: python -m stoker.testing.world {seed} --real"
            lines = [*described(smallest), *story(smallest, RealWorld), again]
            pytest.fail("\n".join([f"seed {seed}: {found}", *lines]), pytrace=False)
        lives -= len(scenario.plans)
        seed += 1


@pytest.mark.heavy
@pytest.mark.timeout(600)
@pytest.mark.parametrize("block", range(BLOCKS))
def test_every_promise_is_kept_by_the_real_server(block: int) -> None:
    survive(block * LIVES, LIVES // BLOCKS)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("block", range(MANY_BLOCKS))
def test_every_promise_is_kept_by_the_real_server_for_twenty_thousand_lives(block: int) -> None:
    survive(1_000_000 + block * MANY_LIVES, MANY_LIVES // MANY_BLOCKS)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("block", range(4))
def test_every_promise_is_kept_while_the_real_server_is_away_for_hours(block: int) -> None:
    for seed in range(10_000 + block * 25, 10_000 + block * 25 + 25):
        found = broken(away(seed), RealWorld)
        assert found is None, f"{found}: python -m stoker.testing.world {seed} --away --real"


@pytest.mark.parametrize("cloud", [False, True])
def test_nothing_happens_to_a_run_in_calm_weather(cloud: bool) -> None:
    (run,) = RealWorld(calm(1, cloud=cloud)).live().server.saved.values()
    assert (len(run.attempts), run.exit_code) == (1, 0)


@pytest.mark.parametrize("seed", [2, 1_000_117, 1_400_103])
def test_worlds_that_once_broke_a_promise_keep_it(seed: int) -> None:
    """A node that nobody needs, of a provider that is not asked in every round. A node whose lease is renewed while its
    provider cannot be asked, and which so costs for longer than its lease after it was last seen. A budget that a
    node was told only after its store had refused the server for two minutes, as if it had been computed just then."""
    assert broken(stormy(seed), RealWorld) is None


def test_the_same_seed_gives_the_same_life_in_every_process() -> None:
    """Not even the order of sets may matter: it differs from process to process."""
    command = [sys.executable, "-m", "stoker.testing.world", "7", "--real", "--whole"]
    told = [
        subprocess.run(command, env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True).stdout
        for seed in ("1", "2")
    ]
    assert told[0] == told[1]
    assert told[0].splitlines()[-len(story(stormy(7), RealWorld)) :] == story(stormy(7), RealWorld)


def test_a_server_that_is_killed_resumes_nothing_and_runs_no_finally() -> None:
    done: list[str] = []

    async def server() -> None:
        try:
            done.append("begun")
            await asyncio.sleep(5)
            done.append("resumed")
        finally:
            done.append("tidied up")

    timeline = Timeline()
    loop = VirtualLoop(timeline)
    loop.create_task(server())
    timeline.at(3.0, loop.kill)
    while timeline.step():
        pass
    assert done == ["begun"]
    loop.bury()


def test_blocking_calls_are_made_at_a_virtual_moment_and_answered_when_they_say() -> None:
    timeline = Timeline()
    loop = VirtualLoop(timeline)
    moments: list[float] = []

    def slow() -> str:
        moments.append(timeline.now)
        loop.taking_s += 25.0
        return "answer"

    async def server() -> None:
        assert await asyncio.to_thread(slow) == "answer"
        moments.append(timeline.now)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.to_thread(slow), 10.0)
        moments.append(timeline.now)

    task = loop.create_task(server())
    while timeline.step():
        pass
    assert task.exception() is None
    assert moments == pytest.approx([0.02, 25.02, 25.04, 35.02])
