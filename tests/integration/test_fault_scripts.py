"""Every run at its right end, with the very weights of an undisturbed one, and nothing left: whatever befalls it.

`FAULT_SEEDS=40-44 pytest tests/integration/test_fault_scripts.py -k right_end` plays a batch again that failed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from azuretwin import BOTH_WEATHERS, Cloud, azure_user, set_up, weather
from faultscripts import Script, Stage, script, unforeseen, wrong
from shell import Shell

pytestmark = [pytest.mark.timeout(600)]

AT_ONCE = 10
SHORT, LONG = 10, 200
MOST_MISSED = 0.1  # of the mishaps: a busy machine may not look at every run in time
SPEED = 5  # a notice of 30 s leaves a script six
REGIONS = ["eastus", "eastus2", "westus2", "northeurope", "westeurope", "uksouth", "swedencentral"]


@pytest.fixture(scope="module", params=BOTH_WEATHERS)
def user(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Shell, Cloud]]:
    root = tmp_path_factory.mktemp("faults")
    with azure_user(root, "--speed", str(SPEED), *weather(request)) as (shell, cloud):
        set_up(shell, cloud, regions=REGIONS, lease_s=120, eviction="Deallocate")
        yield shell, cloud


def play(user: tuple[Shell, Cloud], scripts: list[Script]) -> None:
    shell, cloud = user
    stage = Stage(shell, cloud, scripts)
    try:
        runs = stage.play()
        assert [problem for one in scripts if (problem := wrong(one, runs[one.name]))] == []
        assert stage.left() == []
        assert len(stage.missed()) <= MOST_MISSED * sum(len(one.mishaps) for one in scripts), stage.missed()
    except BaseException as error:
        error.add_note("\n".join(stage.story))
        seeds = [one.seed for one in scripts]
        error.add_note(f"play it again: FAULT_SEEDS={seeds[0]}-{seeds[-1]} pytest {__file__} -k right_end")
        raise


def batches(first: int, count: int) -> list[range]:
    return [range(start, min(start + AT_ONCE, first + count)) for start in range(first, first + count, AT_ONCE)]


def chosen() -> list[range]:
    """The seeds that somebody named, or the usual ones."""
    first, _, last = os.environ.get("FAULT_SEEDS", "").partition("-")
    return [range(int(first), int(last or first) + 1)] if first else batches(0, SHORT)


@pytest.mark.heavy
@pytest.mark.parametrize("seeds", chosen(), ids=str)
def test_every_run_comes_to_its_right_end_and_nothing_is_left(user: tuple[Shell, Cloud], seeds: range) -> None:
    play(user, [script(seed) for seed in seeds])


@pytest.mark.slow
@pytest.mark.parametrize("seeds", batches(SHORT, LONG), ids=str)
def test_two_hundred_more_do(user: tuple[Shell, Cloud], seeds: range) -> None:
    play(user, [script(seed) for seed in seeds])


@pytest.mark.heavy
@pytest.mark.parametrize("seeds", chosen(), ids=str)
def test_whatever_azure_answers_the_right_end_comes(user: tuple[Shell, Cloud], seeds: range) -> None:
    play(user, [unforeseen(seed) for seed in seeds])
