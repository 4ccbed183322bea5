"""One run on several VMs of the twin: one network, evictions of any of them, one budget, and nothing left."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from azuretwin import BOTH_WEATHERS, Cloud, azure_user, served, weather
from shell import Shell
from test_gangs import TRAIN

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(900)]
STEPS = 120
# Behind its first checkpoint, a training that has not resumed rests for as long as an eviction may take to arrive: a
# hostile Azure and a busy computer need more time for that than 120 steps do.
REST_AT, REST_S = 60, 60


@pytest.fixture(scope="module", params=BOTH_WEATHERS)
def user(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Shell, Cloud]]:
    with azure_user(tmp_path_factory.mktemp("gangs"), *weather(request)) as (shell, cloud):
        yield shell, cloud


def patience_s(cloud: Cloud) -> float:
    """A hostile Azure has all three machines at once in two of five tries, half a minute apart."""
    return 600 if cloud.hostile() else 240


def value_after(steps: int, world: int = 3) -> str:
    """What every rank has in the end, undisturbed."""
    value = 1
    for step in range(steps):
        value = (value * 31 + sum(rank + step for rank in range(world))) % 1_000_003
    return str(value)


def submit(shell: Shell, name: str, steps: int = STEPS, **more: Any) -> None:
    slow = TRAIN.replace("time.sleep(0.03)", f"time.sleep({REST_S} if step == {REST_AT} and start == 0 else 0.2)")
    assert slow != TRAIN
    shell.write("train.py", slow)
    shell.job(f"python3 train.py {steps}", **{"on": "azure", "spot": True, "nodes": 3, **more})
    shell.stoker("run", "--detach", "--name", name)


def reaches(shell: Shell, cloud: Cloud, run: str, step: int) -> dict[str, Any]:
    def there() -> dict[str, Any] | None:
        facts = shell.facts(run)
        assert facts["state"] not in ("failed", "succeeded"), facts["reason"]
        return facts if (facts["metrics"].get("value") or {}).get("step", 0) >= step else None

    return dict(shell.wait_for(there, f"step {step} of {run}", patience_s(cloud)))


def ends(shell: Shell, cloud: Cloud, run: str, steps: int = STEPS) -> dict[str, Any]:
    """Succeeded with the values of an undisturbed run, and nothing is left."""
    shell.wait_for(
        lambda: shell.facts(run)["state"] not in ("queued", "starting", "running"), f"{run}'s end", patience_s(cloud)
    )
    facts = shell.facts(run)
    assert facts["state"] == "succeeded", (facts["reason"], facts["attempts"])
    landed = Path(shell.wait_for(lambda: shell.facts(run)["landed"], "the outputs", 60))
    found = {path.name: path.read_text() for path in landed.glob("rank-*.txt")}
    assert found == {f"rank-{rank}.txt": value_after(steps) for rank in range(3)}
    shell.wait_for(cloud.empty, "nothing to be left", patience_s(cloud) / 2)
    assert cloud.ask("status")["usd_per_hour"] == 0
    return facts


def keys(attempt: dict[str, Any]) -> list[str]:
    return [attempt["key"], *(peer["key"] for peer in attempt["peers"])]


def vm_of(cloud: Cloud, key: str) -> str:
    """By its tag: it is the VM of another key first where it was taken over."""
    groups = cloud.arm("GET", "/resources", version="2021-04-01")["value"]
    vms = [one for one in groups if one["type"].lower().endswith("/virtualmachines")]
    return str(next(one["id"] for one in vms if (one.get("tags") or {}).get("stoker-node") == key))


def rules_of_the_network(cloud: Cloud, group: str) -> list[Any]:
    """What its firewall allows besides Azure's own rules, which let in nobody from outside."""
    path = f"/resourceGroups/{group}/providers/Microsoft.Network/networkSecurityGroups/gang"
    return list(cloud.arm("GET", path, version="2024-05-01")["properties"]["securityRules"])


def again(attempt: dict[str, Any]) -> list[str]:
    return [one["offer"]["again"] for one in (attempt, *attempt["peers"])]


def test_three_vms_in_one_network_train_together_and_leave_nothing(user: tuple[Shell, Cloud]) -> None:
    shell, cloud = user
    for number in range(40):
        shell.write(f"pictures/{number}.txt", str(number) * 20_000)
    shell.stoker("data", "put", "pictures", "--name", "pictures")
    submit(shell, "calm", steps=15, data={"pictures": {"dataset": "pictures", "mode": "download"}})
    reaches(shell, cloud, "calm", 3)
    machines = cloud.machines()
    assert len(machines) == 3 and len({one["vm"].split("/")[4].lower() for one in machines}) == 1, "one resource group"
    assert sorted(one["tags"]["stoker-node"] for one in machines) == keys(shell.facts("calm")["attempts"][-1])
    listed = cloud.arm("GET", "/resources", version="2021-04-01")["value"]
    kinds = [one["type"].split("/")[1] for one in listed]
    shared = ("virtualNetworks", "networkSecurityGroups", "proximityPlacementGroups")
    assert {kind: kinds.count(kind) for kind in shared} == dict.fromkeys(shared, 1)
    assert "publicIPAddresses" not in kinds and kinds.count("virtualMachines") == 3
    assert rules_of_the_network(cloud, machines[0]["vm"].split("/")[4]) == [], "no port is open to the world"
    facts = ends(shell, cloud, "calm", steps=15)
    told = json.loads(shell.stoker("receipt", "calm", "--json").stdout)["receipt"]
    last = facts["attempts"][-1]["number"]
    assert [stay["attempt"] for stay in told["stays"]].count(last) == 3, "every node is on the receipt"
    assert told["left"] == [] and served(facts) == ["ended"]
    events = json.loads(shell.stoker("show", "calm", "--json").stdout)["events"]
    brought = [one["text"] for one in events if one["kind"] == "data" and "pictures" in one["text"]]
    assert sum("from other nodes" in text for text in brought) >= 2, brought
    assert json.loads(shell.stoker("cleanup", "--json").stdout)["left"] == []


def test_a_node_evicted_with_notice_is_replaced_and_the_others_keep_their_machines(
    user: tuple[Shell, Cloud],
) -> None:
    shell, cloud = user
    submit(shell, "warned")
    attempt = reaches(shell, cloud, "warned", REST_AT)["attempts"][-1]
    hit = keys(attempt)[1]
    cloud.ask("evict", vm=vm_of(cloud, hit), notice_s=10)
    facts = ends(shell, cloud, "warned")
    assert served(facts) == ["evicted", "ended"]
    first, _, third = keys(attempt)
    evicted, after = facts["attempts"][attempt["number"] - 1 :][:2]
    if not cloud.hostile():  # where no replacement is available, the others are released, too
        assert again(after) == [first, "", third]
        assert evicted["peers"][0]["spare"], "the replacement was asked for at the notice"


@pytest.mark.parametrize("node", [0, 2])
def test_a_node_taken_without_notice_costs_neither_the_others_nor_the_result(
    user: tuple[Shell, Cloud], node: int
) -> None:
    shell, cloud = user
    name = f"taken{node}"
    submit(shell, name)
    attempt = reaches(shell, cloud, name, REST_AT)["attempts"][-1]
    cloud.ask("evict", vm=vm_of(cloud, keys(attempt)[node]), notice_s=0)
    facts = ends(shell, cloud, name)
    assert len(served(facts)) == 2
    expected = ["" if number == node else key for number, key in enumerate(keys(attempt))]
    assert again(facts["attempts"][attempt["number"]]) == expected


@pytest.mark.slow
@pytest.mark.timeout(470)
def test_a_run_that_gets_no_replacement_shrinks_and_grows_when_there_is_one(user: tuple[Shell, Cloud]) -> None:
    shell, cloud = user
    submit(shell, "small", 900, nodes="2..3", size="Standard_D2s_v5", region="westeurope")
    attempt = reaches(shell, cloud, "small", 60)["attempts"][-1]
    cloud.ask("fault", kind="allocation", times=1)
    cloud.ask("evict", vm=vm_of(cloud, keys(attempt)[0]), notice_s=0)

    def width(nodes: int) -> list[dict[str, Any]] | None:
        made: list[dict[str, Any]] = shell.facts("small")["attempts"]
        assert shell.facts("small")["state"] not in ("failed", "succeeded"), made
        return made if len(made) > 1 and made[-1]["state"] == "running" and len(keys(made[-1])) == nodes else None

    made = shell.wait_for(lambda: width(2), "two nodes", 150)
    assert any(one["trouble"] == "no-capacity" for one in made)
    assert set(again(made[-1])) == set(keys(attempt)[1:]), "the others keep their machines"
    assert "not available" in made[-1]["fewer"]
    made = shell.wait_for(lambda: width(3), "three nodes again", 200)
    assert set(again(made[-1])) == {*keys(attempt)[1:], ""} and not made[-1]["fewer"]
    said = shell.stoker("explain", "small").stdout
    assert "has 2 of 3 nodes" in said and "all 3 nodes are available again" in said, said
    shell.stoker("cancel", "small")
    shell.wait_for(cloud.empty, "nothing to be left", 120)


def test_mpirun_starts_the_ranks_of_all_vms_through_the_agents(user: tuple[Shell, Cloud]) -> None:
    shell, cloud = user
    submit(shell, "mpi", steps=15, launcher="mpi")
    ends(shell, cloud, "mpi", steps=15)


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
    [problem] = shell.refused("run", "--detach")["problems"]
    assert (problem["field"], problem["found"]) == ("nodes", "`5000`") and "quota" in problem["expected"], problem
