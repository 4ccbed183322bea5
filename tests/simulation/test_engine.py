"""Whole lives of runs, from a seed, in a world where everything that can break does."""

import pytest
from world import World, ended

from stoker.model.orders import Wish
from stoker.model.report import Outcome
from stoker.model.run import AttemptState, Run, RunState

SEEDS = 300
BAD_WEATHER = 120  # steps
CLEAR_WEATHER = 1500


def live(seed: int) -> World:
    """Bad weather for a while, then a clear sky until everything is over. Checks every step of the way."""
    world = World(seed)
    for number in range(1, 7):
        world.submit(number)
    ends: dict[str, Run] = {}
    for step in range(BAD_WEATHER + CLEAR_WEATHER):
        world.trouble = 0.05 if step < BAD_WEATHER else 0.0
        if world.trouble and world.random.random() < 0.02:
            world.cancel_one()
        if world.trouble and world.random.random() < 0.1:
            world.evict_one()
        world.step()
        check(world, ends)
        if ended(world) and not world.nodes:
            break
    return world


def check(world: World, ends: dict[str, Run]) -> None:
    for run in world.saved.values():
        working = [k for k, n in world.nodes.items() if n.run_id == run.id and (n.alive or n.hung) and not n.done]
        assert len(working) <= 1, f"{run.name} runs twice: {working}"
        if run.state.ended:
            assert ends.setdefault(run.id, run) == run, f"{run.name} changed after its end"


@pytest.mark.parametrize("block", range(10))
def test_every_run_reaches_exactly_one_right_end_whatever_crashes(block: int) -> None:
    for seed in range(block * SEEDS // 10, (block + 1) * SEEDS // 10):
        world = live(seed)
        story = "\n".join([f"seed {seed}", *world.trace])
        assert ended(world), story
        assert not world.nodes, f"nodes were left behind\n{story}"
        for run in world.saved.values():
            assert right(run), f"{run.name} ended as {run.state}: {run.attempts}\n{story}"


def right(run: Run) -> bool:
    """The end follows from what the attempts reported."""
    outcomes = [attempt.outcome for attempt in run.attempts if attempt.outcome]
    lost = sum(a.state is AttemptState.LOST or a.outcome is Outcome.CANCELLED for a in run.attempts)
    match run.state:
        case RunState.SUCCEEDED:
            return outcomes[-1:] == [Outcome.SUCCEEDED] and run.exit_code == 0
        case RunState.CANCELLED:
            return run.wish is Wish.CANCEL and Outcome.SUCCEEDED not in outcomes
        case RunState.FAILED:
            failures = outcomes.count(Outcome.FAILED)
            tried = failures > run.job.retries or run.wish is Wish.CANCEL
            return run.exit_code != 0 and (lost >= 5 or (failures > 0 and tried))
    return False


def test_the_same_seed_gives_the_same_life() -> None:
    assert live(7).trace == live(7).trace
