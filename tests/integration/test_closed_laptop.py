"""Close the laptop: the server is killed, and runs on machines of the twin end without it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from azuretwin import BOTH_WEATHERS, Cloud, azure_user, begin, reaches, right_end, served, set_up, timeline, weather
from shell import Shell

pytestmark = [pytest.mark.timeout(600)]

STEPS, STEP_S = 120, 0.15


@pytest.fixture(scope="module", params=BOTH_WEATHERS)
def user(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Shell, Cloud]]:
    with azure_user(tmp_path_factory.mktemp("closed"), *weather(request)) as (shell, cloud):
        cloud.ask("weather", restore_s=2.0)
        shell.stoker("server", "stop", code=None)
        set_up(shell, cloud, idle_s=6.0)
        yield shell, cloud


def closed(shell: Shell, name: str) -> None:
    """A running script, and a server that was killed."""
    begin(shell, name, STEPS, STEP_S)
    reaches(shell, name, 5)
    told = "You can close this computer: the run continues until it ends, at most 24 h; if its machine is evicted"
    shell.wait_for(lambda: told in shell.stoker("show", name).stdout, "word that the computer may be closed", 30)
    shell.kill_server()


def opened(shell: Shell, cloud: Cloud, name: str) -> dict[str, object]:
    """Everything is found afterwards, and nothing is left."""
    facts = right_end(shell, cloud, name, STEPS)
    assert not any(json.loads(shell.stoker("cleanup", "--json").stdout).values())
    return facts


def receipt(shell: Shell, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(shell.stoker("receipt", name, "--json").stdout)["receipt"]
    return found


@pytest.mark.heavy
def test_a_run_ends_uploads_and_removes_its_machine_without_a_server(user: tuple[Shell, Cloud]) -> None:
    shell, cloud = user
    closed(shell, "alone")
    gone = time.monotonic()
    shell.wait_for(cloud.empty, "the machine to have removed itself", 120)
    assert time.monotonic() - gone > 12, "it worked for longer than a machine without work may stay"
    facts = opened(shell, cloud, "alone")
    assert served(facts) == ["ended"]
    shell.wait_for(lambda: receipt(shell, "alone")["final"], "the end of the bill", 30)
    assert receipt(shell, "alone")["taken"] == []


@pytest.mark.parametrize("notice_s", [0, 8])
@pytest.mark.heavy
def test_a_run_whose_machine_is_evicted_without_a_server_ends_with_the_same_bits(
    user: tuple[Shell, Cloud], notice_s: int
) -> None:
    shell, cloud = user
    name = f"evicted-{notice_s}"
    closed(shell, name)
    (machine,) = cloud.machines()
    cloud.ask("evict", vm=machine["vm"], notice_s=notice_s)
    shell.wait_for(lambda: cloud.running() not in ([], [machine["vm"]]), "Azure to restore it", 90)
    shell.wait_for(cloud.empty, "the machine to have removed itself", 150)
    facts = opened(shell, cloud, name)
    assert served(facts) == ["ended"], "the same attempt, on another machine"
    assert "machine-restored" in timeline(shell, name)
    steps = [json.loads(line)["step"] for line in shell.stoker("logs", name).stdout.splitlines()]
    assert set(range(1, STEPS + 1)) <= set(steps)
    assert [one["how"] for one in receipt(shell, name)["taken"]] == ["evicted"]


@pytest.mark.heavy
def test_a_server_that_comes_back_while_the_machine_is_away_takes_over(user: tuple[Shell, Cloud]) -> None:
    shell, cloud = user
    cloud.ask("weather", restore_s=120.0)  # longer than a server takes to come back
    try:
        closed(shell, "taken-over")
        (machine,) = cloud.machines()
        cloud.ask("evict", vm=machine["vm"], notice_s=0)
        shell.wait_for(lambda: not cloud.running(), "the eviction", 60)
        facts = opened(shell, cloud, "taken-over")
        assert served(facts) == ["evicted", "ended"]
    finally:
        cloud.ask("weather", restore_s=2.0)
