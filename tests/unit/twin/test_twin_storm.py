"""Any order of requests in any weather leaves the twin's cloud in one piece."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from twinasks import GROUP, Asker

from stoker.twin import state
from stoker.twin.refusal import Refused
from stoker.twin.time.power import BILLED, VMS
from stoker.twin.time.weather import FORECASTS

ACTIONS = ("start", "deallocate", "powerOff", "restart", "simulateEviction", "reapply")


def step(azure: Asker, dice: random.Random) -> None:
    name = dice.choice("abcd")
    match dice.choice(("vm", "vm", "vm", "action", "action", "delete", "group", "time", "time", "run")):
        case "vm":
            policy = dice.choice(("Deallocate", "Delete"))
            spot = {"priority": "Spot", "evictionPolicy": policy, "billingProfile": {"maxPrice": -1}}
            azure.vm(name, **(spot if dice.random() < 0.7 else {}))
        case "action":
            azure.ask("POST", azure.path(name, dice.choice(ACTIONS)))
        case "delete":
            azure.ask("DELETE", azure.path(name))
        case "run":
            azure.ask("POST", azure.path(name, "runCommand"), {"commandId": "RunShellScript", "script": ["true"]})
        case "group" if dice.random() < 0.2:
            azure.ask("DELETE", f"/resourceGroups/{GROUP}")
        case _:
            azure.pass_time(dice.choice((0.1, 1, 40, 4000)), chores=dice.random() < 0.8)


def prepared(azure: Asker) -> None:
    try:
        azure.group()
        azure.network()
    except Refused:  # it is being deleted
        azure.pass_time(10)


@pytest.mark.parametrize("seed", range(15))
def test_whatever_is_asked_the_cloud_stays_in_one_piece(seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)
    azure = Asker(replace(FORECASTS["storm"], seed=seed))
    for _ in range(120):
        prepared(azure)
        try:
            step(azure, dice)
        except Refused as refusal:
            assert 400 <= refusal.status < 500
        check(azure)
    state.save(tmp_path / "cloud.json", azure.cloud)
    assert state.load(tmp_path / "cloud.json") == azure.cloud
    empty(azure)


def check(azure: Asker) -> None:
    cloud = azure.cloud
    vms = {one.id.lower(): one for one in cloud.all(VMS)}
    assert set(cloud.instances) <= set(vms), "a machine has lost its VM"
    for id, vm in vms.items():
        assert id in cloud.instances or vm.properties["provisioningState"] in ("Creating", "Failed", "Deleting")
    disks = cloud.all("Microsoft.Compute/disks")
    owners = {str(disk.body["managedBy"]).lower() for disk in disks if "managedBy" in disk.body}
    assert owners <= set(vms), "a disk belongs to a VM that is gone"
    paid = {charge.resource.lower() for charge in cloud.charges if charge.until is None}
    assert paid <= set(cloud.resources), "something that is gone still costs"
    running = {id for id, instance in cloud.instances.items() if instance.power in BILLED}
    assert running == paid & set(vms), "a machine that runs costs nothing, or one that is off does"
    assert {notice.vm.lower() for notice in cloud.notices.values()} <= set(vms)


def empty(azure: Asker) -> None:
    """Everything ends, and can be removed."""
    azure.cloud = replace(azure.cloud, weather=replace(FORECASTS["calm"]), faults=())
    azure.pass_time(4000)
    prepared(azure)
    azure.ask("DELETE", f"/resourceGroups/{GROUP}")
    azure.pass_time(10)
    assert not azure.cloud.resources
    assert not azure.cloud.instances
    assert not azure.cloud.chores
    assert not [operation for operation in azure.cloud.operations.values() if operation.open]
    assert not [charge for charge in azure.cloud.charges if charge.until is None]
