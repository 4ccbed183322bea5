"""A cluster of VMs of the twin: from zero, warm for the next run, back to zero, and the owner pays for idle time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from azuretwin import BOTH_WEATHERS, Cloud, azure_user, weather
from shell import Shell

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(900)]


@pytest.fixture(scope="module", params=BOTH_WEATHERS)
def user(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Shell, Cloud]]:
    with azure_user(tmp_path_factory.mktemp("cluster"), *weather(request)) as (shell, cloud):
        yield shell, cloud


def patience_s(cloud: Cloud) -> float:
    """A hostile Azure refuses machines, each half a minute after the other, and takes four times as long."""
    return 600 if cloud.hostile() else 200


def submit(shell: Shell, name: str, **more: Any) -> None:
    shell.write("train.py", "import os, socket\nprint('trained on', socket.gethostname(), flush=True)\n")
    shell.job("python3 train.py", **{"on": "dev", **more})
    shell.stoker("run", "--detach", "--name", name)


def ends(shell: Shell, cloud: Cloud, name: str) -> dict[str, Any]:
    """The last of its attempts, which had a machine."""
    facts = shell.wait_for(lambda: _ended(shell, name), f"{name}'s end", patience_s(cloud))
    assert facts["state"] == "succeeded", (facts["reason"], facts["attempts"])
    return dict(facts["attempts"][-1])


def waits(shell: Shell, cloud: Cloud, nodes: int = 1) -> None:
    shell.wait_for(lambda: cluster(shell)["idle_nodes"] == nodes, f"{nodes} idle nodes", patience_s(cloud))


def _ended(shell: Shell, name: str) -> dict[str, Any] | None:
    facts = shell.facts(name)
    return facts if facts["ended_at"] else None


def cluster(shell: Shell) -> dict[str, Any]:
    return dict(json.loads(shell.stoker("cluster", "show", "dev", "--json").stdout)["cluster"])


def test_the_second_run_takes_the_warm_machine_and_idle_time_ends_with_none(user: tuple[Shell, Cloud]) -> None:
    shell, cloud = user
    words = ("--provider", "azure", "--min", "0", "--max", "2", "--idle", "1h", "--spot")
    shell.stoker("cluster", "create", "dev", *words)
    assert cloud.empty(), "a cluster costs nothing until its first run"
    shell.job("true", on="dev", nodes=4)
    [problem] = shell.refused("run", "--detach")["problems"]
    assert (problem["field"], problem["found"]) == ("nodes", "`4`")

    submit(shell, "first")
    first = ends(shell, cloud, "first")
    waits(shell, cloud)
    machines = [one["vm"] for one in cloud.machines()]
    assert len(machines) == 1
    submit(shell, "second")
    second = ends(shell, cloud, "second")
    assert second["offer"]["again"] == first["key"]
    assert [one["vm"] for one in cloud.machines()] == machines, "no second VM"
    waits(shell, cloud)
    left = json.loads(shell.stoker("cleanup", "--json").stdout)["left"]
    assert left == [] and cloud.machines(), "a node that waits is no leftover"

    shell.stoker("cluster", "resize", "dev", "--idle", "1s")
    shell.wait_for(cloud.empty, "no machine to be left", patience_s(cloud))
    assert json.loads(shell.stoker("cleanup", "--json").stdout)["left"] == []
    shell.wait_for(lambda: shell.facts("second")["idle"][0]["until"], "the end of the idle time")
    state = cluster(shell)
    assert Decimal(state["idle_usd"]) > 0 and state["idle_hours"] > 0 and state["idle_nodes"] == 0
    runs = [json.loads(shell.stoker("receipt", name, "--json").stdout)["receipt"] for name in ("first", "second")]
    assert [one["left"] for one in runs] == [[], []]
    shell.stoker("cluster", "rm", "dev", "--yes")


def test_a_minimum_is_started_before_any_run_and_takes_the_first_one(user: tuple[Shell, Cloud]) -> None:
    shell, cloud = user
    shell.stoker("cluster", "create", "dev", "--provider", "azure", "--min", "1", "--max", "2", "--idle", "1s")
    waits(shell, cloud)  # without any run
    ahead, machines = shell.facts("dev-warm-1"), [one["vm"] for one in cloud.machines()]
    assert ahead["state"] == "succeeded" and len(machines) == 1
    submit(shell, "early")
    assert ends(shell, cloud, "early")["offer"]["again"] == ahead["attempts"][-1]["key"]
    assert [one["vm"] for one in cloud.machines()] == machines, "no second VM"
    waits(shell, cloud)
    shell.stoker("cluster", "rm", "dev", "--yes")
    shell.wait_for(cloud.empty, "no machine to be left", patience_s(cloud))


def test_the_machines_of_a_gang_take_the_next_gang(user: tuple[Shell, Cloud]) -> None:
    shell, cloud = user
    shell.stoker("cluster", "create", "dev", "--provider", "azure", "--max", "2", "--idle", "1h", "--spot")
    submit(shell, "third", nodes=2)
    third = ends(shell, cloud, "third")
    waits(shell, cloud, 2)
    machines = {one["vm"] for one in cloud.machines()}
    submit(shell, "fourth", nodes=2)
    fourth = ends(shell, cloud, "fourth")
    keys = {one["key"] for one in (third, *third["peers"])}
    assert {one["offer"]["waits"] for one in (fourth, *fourth["peers"])} == keys
    assert {one["vm"] for one in cloud.machines()} == machines, "no other VM"
    shell.stoker("cluster", "pause", "dev")
    shell.wait_for(cloud.empty, "no machine to be left", patience_s(cloud))
    shell.stoker("cluster", "rm", "dev", "--yes")
