"""One run on several VMs of the twin: one network, evictions of any of them, one budget, and nothing left."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from azuretwin import Cloud, azure_user
from shell import Shell
from test_gangs import TRAIN

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(300)]
STEPS = 120


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Shell, Cloud]]:
    with azure_user(tmp_path_factory.mktemp("gangs")) as (shell, cloud):
        yield shell, cloud


def value_after(steps: int, world: int = 3) -> str:
    """What every rank has in the end, undisturbed."""
    value = 1
    for step in range(steps):
        value = (value * 31 + sum(rank + step for rank in range(world))) % 1_000_003
    return str(value)


def submit(shell: Shell, name: str, steps: int = STEPS, **more: Any) -> None:
    slow = TRAIN.replace("time.sleep(0.03)", "time.sleep(0.2)")
    assert slow != TRAIN
    shell.write("train.py", slow)
    shell.job(f"python3 train.py {steps}", **{"on": "azure", "spot": True, "nodes": 3, **more})
    shell.stoker("run", "--detach", "--name", name)


def reaches(shell: Shell, run: str, step: int) -> dict[str, Any]:
    def there() -> dict[str, Any] | None:
        facts = shell.facts(run)
        assert facts["state"] not in ("failed", "succeeded"), facts["reason"]
        return facts if (facts["metrics"].get("value") or {}).get("step", 0) >= step else None

    return dict(shell.wait_for(there, f"step {step} of {run}", 240))


def ends(shell: Shell, cloud: Cloud, run: str, steps: int = STEPS) -> dict[str, Any]:
    """Succeeded with the values of an undisturbed run, and nothing is left."""
    shell.wait_for(lambda: shell.facts(run)["state"] not in ("queued", "starting", "running"), f"{run}'s end", 300)
    facts = shell.facts(run)
    assert facts["state"] == "succeeded", (facts["reason"], facts["attempts"])
    landed = Path(shell.wait_for(lambda: shell.facts(run)["landed"], "the outputs", 60))
    found = {path.name: path.read_text() for path in landed.glob("rank-*.txt")}
    assert found == {f"rank-{rank}.txt": value_after(steps) for rank in range(3)}
    shell.wait_for(cloud.empty, "nothing to be left", 120)
    assert cloud.ask("status")["usd_per_hour"] == 0
    return facts


def keys(attempt: dict[str, Any]) -> list[str]:
    return [attempt["key"], *(peer["key"] for peer in attempt["peers"])]


def vm_of(cloud: Cloud, key: str) -> str:
    """By its tag: it is the VM of another key first where it was taken over."""
    groups = cloud.arm("GET", "/resources", version="2021-04-01")["value"]
    vms = [one for one in groups if one["type"].lower().endswith("/virtualmachines")]
    return str(next(one["id"] for one in vms if (one.get("tags") or {}).get("stoker-node") == key))


def again(attempt: dict[str, Any]) -> list[str]:
    return [one["offer"]["again"] for one in (attempt, *attempt["peers"])]


def test_three_vms_in_one_network_train_together_and_leave_nothing(user: tuple[Shell, Cloud]) -> None:
    shell, cloud = user
    submit(shell, "calm", steps=15)
    reaches(shell, "calm", 3)
    machines = cloud.machines()
    assert len({one["vm"].split("/")[4].lower() for one in machines}) == 1, "one resource group"
    listed = cloud.arm("GET", "/resources", version="2021-04-01")["value"]
    kinds = [one["type"].split("/")[1] for one in listed]
    shared = ("virtualNetworks", "networkSecurityGroups", "proximityPlacementGroups")
    assert {kind: kinds.count(kind) for kind in shared} == dict.fromkeys(shared, 1)
    assert "publicIPAddresses" not in kinds and kinds.count("virtualMachines") == 3
    facts = ends(shell, cloud, "calm", steps=15)
    told = json.loads(shell.stoker("receipt", "calm", "--json").stdout)["receipt"]
    assert [stay["attempt"] for stay in told["stays"]] == [1, 1, 1], "every node is on the receipt"
    assert told["left"] == [] and len(facts["attempts"]) == 1
    assert json.loads(shell.stoker("cleanup", "--json").stdout)["left"] == []


def test_a_node_evicted_with_notice_is_replaced_and_the_others_keep_their_machines(
    user: tuple[Shell, Cloud],
) -> None:
    shell, cloud = user
    submit(shell, "warned")
    attempt = reaches(shell, "warned", 8)["attempts"][-1]
    hit = keys(attempt)[1]
    cloud.ask("evict", vm=vm_of(cloud, hit), notice_s=10)
    shell.wait_for(lambda: shell.facts("warned")["attempts"][-1]["number"] == 2, "a second attempt", 120)
    facts = ends(shell, cloud, "warned")
    assert [one["state"] for one in facts["attempts"]] == ["evicted", "ended"]
    first, _, third = keys(attempt)
    assert again(facts["attempts"][1]) == [first, "", third]
    assert facts["attempts"][0]["peers"][0]["spare"], "the replacement was asked for at the notice"


@pytest.mark.parametrize("node", [0, 2])
def test_a_node_taken_without_notice_costs_neither_the_others_nor_the_result(
    user: tuple[Shell, Cloud], node: int
) -> None:
    shell, cloud = user
    name = f"taken{node}"
    submit(shell, name)
    attempt = reaches(shell, name, 12)["attempts"][-1]
    cloud.ask("evict", vm=vm_of(cloud, keys(attempt)[node]), notice_s=0)
    facts = ends(shell, cloud, name)
    assert len(facts["attempts"]) == 2
    expected = ["" if number == node else key for number, key in enumerate(keys(attempt))]
    assert again(facts["attempts"][1]) == expected


def test_a_budget_that_pays_for_three_of_four_is_refused_with_the_amount(user: tuple[Shell, Cloud]) -> None:
    shell, _ = user
    shell.write("train.py", TRAIN)
    shell.job("python3 train.py 5", on="azure", spot=True, nodes=4)
    plan = json.loads(shell.stoker("plan", "--json").stdout)
    assert plan
    shell.job("python3 train.py 5", on="azure", spot=True, nodes=4, budget="$0.0001")
    refused = shell.stoker("run", "--detach", code=None)
    assert refused.returncode and "budget" in refused.stderr and "4 Standard" in refused.stderr, refused.stderr


def test_a_gang_larger_than_the_quota_is_refused_with_the_number(user: tuple[Shell, Cloud]) -> None:
    shell, _ = user
    shell.write("train.py", TRAIN)
    shell.job("python3 train.py 5", on="azure", spot=True, nodes=5000)
    refused = shell.stoker("run", "--detach", code=None)
    assert refused.returncode and "`5000`" in refused.stderr and "that is the quota" in refused.stderr, refused.stderr
