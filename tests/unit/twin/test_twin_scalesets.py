"""Scale sets with Flexible orchestration: their instances, and what Azure restores of them after an eviction."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from twinasks import GROUP, IMAGE, KEY, REGION, Asker

from stoker.twin.arm.vms import parts
from stoker.twin.market import prices
from stoker.twin.market import prices as meter
from stoker.twin.refusal import Refused
from stoker.twin.state import PriceOrder, Resource
from stoker.twin.time import power
from stoker.twin.time.weather import OrderedFault
from stoker.twin.world import machine_token

SETS, VMS = "Microsoft.Compute/virtualMachineScaleSets", "Microsoft.Compute/virtualMachines"
SIZE = "Standard_D4s_v5"
RESTORE_S = 60.0


@pytest.fixture
def azure() -> Asker:
    asker = Asker()
    asker.group()
    asker.network()
    return asker


def body(azure: Asker, **changes: Any) -> dict[str, Any]:
    """Of a spot set of one. `changes` are properties of its profile."""
    network = f"{azure.inside('Microsoft.Network/virtualNetworks')}/net"
    subnet = f"/subscriptions/{azure.cloud.subscription}{network}/subnets/nodes"
    address = {"name": "first", "properties": {"subnet": {"id": subnet}}}
    card = {"name": "set_nic", "properties": {"primary": True, "deleteOption": "Delete", "ipConfigurations": [address]}}
    profile = {
        "storageProfile": {
            "imageReference": IMAGE,
            "osDisk": {"createOption": "FromImage", "deleteOption": "Delete"},
        },
        "osProfile": {
            "computerNamePrefix": "node",
            "adminUsername": "me",
            "customData": "IyEvYmluL3NoCg==",
            "linuxConfiguration": {
                "disablePasswordAuthentication": True,
                "ssh": {"publicKeys": [{"path": "/home/me/.ssh/authorized_keys", "keyData": KEY}]},
            },
        },
        "networkProfile": {"networkApiVersion": "2022-07-01", "networkInterfaceConfigurations": [card]},
        "priority": "Spot",
        "evictionPolicy": "Delete",
        "billingProfile": {"maxPrice": -1},
        **changes,
    }
    return {
        "location": REGION,
        "tags": {"owner": "anna"},
        "sku": {"name": SIZE, "capacity": 1},
        "properties": {
            "orchestrationMode": "Flexible",
            "platformFaultDomainCount": 1,
            "singlePlacementGroup": False,
            "spotRestorePolicy": {"enabled": True, "restoreTimeout": "PT1H"},
            "virtualMachineProfile": profile,
        },
    }


def path(azure: Asker, name: str = "set") -> str:
    return f"{azure.inside(SETS)}/{name}"


def make(azure: Asker, name: str = "set", **changes: Any) -> Resource:
    azure.ask("PUT", path(azure, name), body(azure, **changes))
    azure.pass_time(2)
    return instance(azure)


def instance(azure: Asker) -> Resource:
    (vm,) = azure.cloud.all(VMS)
    return vm


def capacity(azure: Asker, name: str = "set") -> int:
    return int(azure.ask("GET", path(azure, name)).body["sku"]["capacity"])


def evict(azure: Asker) -> None:
    azure.ask("POST", azure.path(instance(azure).name, "simulateEviction"))
    azure.pass_time(31)


def test_an_instance_is_an_ordinary_vm_with_the_tags_of_its_set(azure: Asker) -> None:
    vm = make(azure)
    assert vm.name.startswith("set_") and len(vm.name) == len("set_") + 8
    assert vm.properties["virtualMachineScaleSet"]["id"].endswith("/virtualMachineScaleSets/set")
    assert vm.body["tags"] == {"owner": "anna"}
    assert vm.properties["osProfile"]["computerName"].startswith("node")
    assert azure.instance(vm.name).power == "running"
    assert azure.ask("GET", path(azure)).body["properties"]["provisioningState"] == "Succeeded"
    assert azure.kinds() == [
        *("disks", "networkInterfaces", "resourceGroups", "virtualMachineScaleSets", "virtualMachines"),
        "virtualNetworks",
    ]
    listed = azure.ask("GET", f"{path(azure)}/virtualMachines").body["value"]
    assert [one["instanceId"] for one in listed] == [vm.name]


def test_instances_of_one_set_can_be_listed_with_their_view(azure: Asker) -> None:
    vm = make(azure)
    azure.vm("other")
    of_set = f"'virtualMachineScaleSet/id' eq '{vm.properties['virtualMachineScaleSet']['id']}'"
    found = azure.ask("GET", azure.inside(VMS), _filter=of_set, _expand="instanceView").body["value"]
    assert [one["name"] for one in found] == [vm.name]
    assert found[0]["properties"]["instanceView"]["statuses"][1]["code"] == "PowerState/running"


def test_custom_data_of_a_set_cannot_be_read_back(azure: Asker) -> None:
    vm = make(azure)
    for told in (azure.ask("GET", path(azure)).body, azure.ask("GET", azure.path(vm.name)).body):
        assert "customData" not in str(told)
    assert vm.secret["osProfile"]["customData"] == "IyEvYmluL3NoCg=="


def test_an_evicted_instance_is_gone_and_another_is_made_with_the_same_custom_data_and_an_empty_disk(
    azure: Asker,
) -> None:
    first = make(azure)
    azure.ask("PATCH", path(azure), {"tags": {"owner": "bob"}})
    evict(azure)
    assert azure.cloud.all(VMS) == [] and capacity(azure) == 1
    assert "disks" not in azure.kinds() and "networkInterfaces" not in azure.kinds()
    azure.pass_time(RESTORE_S)
    azure.pass_time(2)
    second = instance(azure)
    assert second.name != first.name and second.name.startswith("set_")
    assert second.secret == first.secret
    assert second.body["tags"] == {"owner": "bob"}
    assert azure.instance(second.name).power == "running"
    names = [one.vm.rsplit("/", 1)[-1] for one in azure.cloud.instances.values()]
    assert names == [second.name]
    assert [name for verb, name in azure.done if verb == "create"] == [first.name, second.name]


def test_a_set_without_trusted_launch_is_restored_as_it_was_made(azure: Asker) -> None:
    given = body(azure, securityProfile={"securityType": "Standard"})
    azure.ask("PUT", path(azure), given, **{"api-version": "2025-11-01"})
    azure.pass_time(2)
    evict(azure)
    azure.pass_time(RESTORE_S)
    assert instance(azure).properties["securityProfile"] == {"securityType": "Standard"}


def test_an_instance_gets_its_own_eviction_notice_under_its_own_name(azure: Asker) -> None:
    vm = make(azure)
    azure.ask("POST", azure.path(vm.name, "simulateEviction"))
    (chore,) = [one for one in azure.cloud.chores.values() if one.verb == "events"]
    (event,) = chore.details["document"]["Events"]
    assert (event["EventType"], event["Resources"]) == ("Preempt", [vm.name])


def test_the_machines_of_a_set_hear_of_each_others_evictions_and_tell_them_apart_by_resources(azure: Asker) -> None:
    make(azure)
    azure.ask("PATCH", path(azure), {"sku": {"name": SIZE, "capacity": 2}})
    azure.pass_time(2)
    first, second = azure.cloud.all(power.VMS)
    azure.ask("POST", azure.path(first.name, "simulateEviction"))
    heard = {one.vm: one.details["document"]["Events"] for one in azure.cloud.chores.values() if one.verb == "events"}
    assert {vm: [event["Resources"] for event in said] for vm, said in heard.items()} == {
        first.id: [[first.name]],
        second.id: [[first.name]],
    }
    azure.pass_time()
    azure.pass_time(60, chores=False)
    (over,) = [one for one in azure.cloud.chores.values() if (one.verb, one.vm) == ("events", second.id)]
    assert over.details["document"]["Events"] == [], "it has happened"


def test_without_a_machine_a_restore_is_tried_again_and_again(azure: Asker) -> None:
    make(azure)
    azure.cloud = replace(azure.cloud, faults=(OrderedFault("allocation", path="/virtualMachineScaleSets/", times=3),))
    evict(azure)
    for _ in range(3):
        azure.pass_time(RESTORE_S)
        assert azure.cloud.all(VMS) == []
    azure.pass_time(RESTORE_S)
    assert instance(azure)


def test_above_its_price_an_instance_is_evicted_and_restored_when_the_price_has_fallen(azure: Asker) -> None:
    make(azure, billingProfile={"maxPrice": 1})
    azure.cloud = replace(azure.cloud, prices=(PriceOrder(SIZE, REGION, azure.now, 2.0),))
    for _ in range(4):
        azure.pass_time(RESTORE_S)
    assert azure.cloud.all(VMS) == []
    azure.cloud = replace(azure.cloud, prices=(PriceOrder(SIZE, REGION, azure.now, 0.5),))
    azure.pass_time(RESTORE_S)
    assert instance(azure)


def test_without_a_free_address_a_restore_is_tried_again_until_there_is_one(azure: Asker) -> None:
    card = body(azure)["properties"]["virtualMachineProfile"]["networkProfile"]
    own = {"name": "ip", "sku": {"name": "Standard"}, "properties": {"deleteOption": "Delete"}}
    first = card["networkInterfaceConfigurations"][0]["properties"]["ipConfigurations"][0]
    first["properties"]["publicIPAddressConfiguration"] = own
    make(azure, networkProfile=card)
    azure.cloud = replace(azure.cloud, quotas={f"{REGION}/publicipaddresses": 0})
    evict(azure)
    for _ in range(3):
        azure.pass_time(RESTORE_S)
        assert azure.cloud.restores and not azure.cloud.instances
    azure.cloud = replace(azure.cloud, quotas={})
    azure.pass_time(RESTORE_S)
    assert azure.cloud.instances and not azure.cloud.restores


def test_a_restore_is_given_up_after_its_timeout(azure: Asker) -> None:
    make(azure)
    azure.cloud = replace(azure.cloud, faults=(OrderedFault("allocation", times=1000),))
    evict(azure)
    for _ in range(62):
        azure.pass_time(RESTORE_S)
    assert capacity(azure) == 0
    azure.cloud = replace(azure.cloud, faults=())
    azure.pass_time(10 * RESTORE_S)
    assert azure.cloud.all(VMS) == []


def test_without_a_policy_nothing_is_restored(azure: Asker) -> None:
    given = body(azure)
    del given["properties"]["spotRestorePolicy"]
    azure.ask("PUT", path(azure), given)
    azure.pass_time(2)
    evict(azure)
    azure.pass_time(10 * RESTORE_S)
    assert azure.cloud.all(VMS) == [] and capacity(azure) == 0


@pytest.mark.parametrize("when", ["running", "evicted"])
def test_deleting_a_set_deletes_all_of_it_and_ends_its_restore(azure: Asker, when: str) -> None:
    make(azure)
    if when == "evicted":
        evict(azure)
    azure.ask("DELETE", path(azure), forceDeletion="true")
    azure.pass_time(1)
    azure.pass_time(10 * RESTORE_S)
    assert azure.kinds() == ["resourceGroups", "virtualNetworks"]
    assert azure.cloud.restores == {} and azure.cloud.instances == {}
    assert azure.ask("DELETE", path(azure)).status == 204
    assert meter.bill(azure.cloud, azure.now)["usd_per_hour"] == 0


def test_a_group_that_is_deleted_restores_nothing(azure: Asker) -> None:
    make(azure)
    evict(azure)
    azure.ask("DELETE", f"/resourceGroups/{GROUP}")
    azure.pass_time(1)
    azure.pass_time(10 * RESTORE_S)
    assert azure.cloud.resources == {} and azure.cloud.restores == {}


def test_deleting_an_instance_lowers_the_capacity(azure: Asker) -> None:
    vm = make(azure)
    azure.ask("DELETE", azure.path(vm.name))
    azure.pass_time(1)
    azure.pass_time(10 * RESTORE_S)
    assert capacity(azure) == 0 and azure.cloud.all(VMS) == []


def test_capacity_makes_and_removes_instances(azure: Asker) -> None:
    make(azure)
    azure.ask("PATCH", path(azure), {"sku": {"capacity": 3}})
    azure.pass_time(2)
    assert len(azure.cloud.instances) == 3
    azure.ask("PATCH", path(azure), {"sku": {"capacity": 0}})
    azure.pass_time(2)
    assert azure.cloud.all(VMS) == [] and capacity(azure) == 0


def test_a_lack_of_machines_fails_the_set_and_leaves_no_instance(azure: Asker) -> None:
    azure.cloud = replace(azure.cloud, faults=(OrderedFault("allocation"),))
    answer = azure.ask("PUT", path(azure), body(azure))
    azure.pass_time(2)
    operation = answer.headers["Azure-AsyncOperation"].split("/operations/")[1].split("?")[0]
    assert azure.cloud.operations[operation].error["code"] == "AllocationFailed"
    assert azure.ask("GET", path(azure)).body["properties"]["provisioningState"] == "Failed"
    assert azure.cloud.all(VMS) == []
    assert make(azure)


def test_instances_count_against_the_quota_and_cost_money(azure: Asker) -> None:
    make(azure)
    assert prices.used(azure.cloud, REGION, prices.SPOT) == 4
    assert meter.bill(azure.cloud, azure.now)["usd_per_hour"] > 0
    azure.cloud = replace(azure.cloud, quotas={f"{REGION}/{prices.SPOT}".lower(): 4})
    with pytest.raises(Refused, match="quota"):
        azure.ask("PUT", path(azure, "second"), body(azure))
    assert azure.cloud.find(f"/subscriptions/{azure.cloud.subscription}{path(azure, 'second')}") is None


def test_an_instance_has_the_identity_of_its_set_and_names_it_for_a_token(azure: Asker) -> None:
    identities = azure.inside("Microsoft.ManagedIdentity/userAssignedIdentities")
    named = [azure.ask("PUT", f"{identities}/{name}", {"location": REGION}).body for name in ("one", "two")]
    given = body(azure)
    given["identity"] = {"type": "UserAssigned", "userAssignedIdentities": {one["id"]: {} for one in named}}
    azure.ask("PUT", path(azure), given)
    azure.pass_time(2)
    machine = azure.instance(instance(azure).name).name
    with pytest.raises(LookupError):  # which of the two?
        machine_token(azure.cloud, machine, "https://x", 0)
    for one in named:
        token = machine_token(azure.cloud, machine, "https://x", 0, one["id"].upper())
        assert token["client_id"] == one["properties"]["clientId"]
    with pytest.raises(LookupError):
        machine_token(azure.cloud, machine, "https://x", 0, "/subscriptions/s/none")


def test_a_driver_of_the_profile_is_installed_in_each_instance(azure: Asker) -> None:
    driver = {"publisher": "Microsoft.HpcCompute", "type": "NvidiaGpuDriverLinux", "typeHandlerVersion": "1.10"}
    given = body(azure, extensionProfile={"extensions": [{"name": "drivers", "properties": driver}]})
    given["sku"]["name"] = "Standard_NC4as_T4_v3"
    azure.ask("PUT", path(azure), given)
    azure.pass_time(2)
    assert "extensions" in azure.kinds()
    evict(azure)
    azure.pass_time(RESTORE_S)
    azure.pass_time(2)
    assert "extensions" in azure.kinds()


def test_an_instance_reaches_the_outside_by_an_address_of_its_own_and_not_otherwise(azure: Asker) -> None:
    """Where a plain VM has Azure's default, which is why that is easy to miss."""
    azure.vm("plain")
    assert parts.has_way_out(azure.cloud, azure.cloud.all(VMS)[0])
    given = body(azure)
    azure.ask("PUT", path(azure, "shut"), given)
    (shut,) = [vm for vm in azure.cloud.all(VMS) if vm.name.startswith("shut_")]
    assert not parts.has_way_out(azure.cloud, shut)
    card = given["properties"]["virtualMachineProfile"]["networkProfile"]["networkInterfaceConfigurations"][0]
    public = {"name": "ip", "sku": {"name": "Standard"}, "properties": {"deleteOption": "Delete"}}
    card["properties"]["ipConfigurations"][0]["properties"]["publicIPAddressConfiguration"] = public
    azure.ask("PUT", path(azure, "open"), given)
    (open_,) = [vm for vm in azure.cloud.all(VMS) if vm.name.startswith("open_")]
    assert parts.has_way_out(azure.cloud, open_)
    azure.ask("DELETE", path(azure, "open"))
    azure.pass_time(2)
    assert "publicIPAddresses" not in azure.kinds()


@pytest.mark.parametrize(("subnet", "out"), [({"defaultOutboundAccess": False}, False), ({}, True)])
def test_a_private_subnet_has_no_way_out(azure: Asker, subnet: dict[str, Any], out: bool) -> None:
    place = f"{azure.inside('Microsoft.Network/virtualNetworks')}/net/subnets/nodes"
    azure.ask("PUT", place, {"properties": {"addressPrefix": "10.0.0.0/24", **subnet}})
    azure.vm("plain")
    assert parts.has_way_out(azure.cloud, azure.cloud.all(VMS)[0]) is out


def changed(given: dict[str, Any], where: str, value: Any) -> dict[str, Any]:
    *words, last = where.split(".")
    inner = given
    for word in words:
        inner = inner[word]
    if value is None:
        del inner[last]
    else:
        inner[last] = value
    return given


@pytest.mark.parametrize(
    ("where", "value", "said"),
    [
        ("properties.orchestrationMode", "Uniform", "no scale sets with Uniform orchestration; it has .* 'Flexible'"),
        ("properties.orchestrationMode", None, "no scale sets with Uniform orchestration"),
        ("identity", {"type": "SystemAssigned"}, "BadRequest: System assigned identity is not supported"),
        ("properties.virtualMachineProfile.networkProfile.networkApiVersion", None, "'networkApiVersion' is missing"),
        ("properties.platformFaultDomainCount", None, "'platformFaultDomainCount' is missing"),
        ("properties.spotRestorePolicy.restoreTimeout", "an hour", "not a duration"),
        ("properties.virtualMachineProfile.evictionPolicy", "Deallocate", "none that are deallocated"),
        ("properties.virtualMachineProfile.billingProfile.maxPrice", 0, "MaxPriceValueInvalid"),
        ("properties.virtualMachineProfile.billingProfile.maxPrice", 0.00001, "SpotPriceGreaterThanProvidedMaxPrice"),
        ("properties.virtualMachineProfile.osProfile.adminUsername", "admin", "Admin Username specified is not"),
        ("properties.virtualMachineProfile.osProfile.computerNamePrefix", None, "computerNamePrefix' is missing"),
        ("properties.spotRestorePolicies", {"enabled": True}, "Could not find member 'spotRestorePolicies'"),
        ("sku.name", "Standard_Nothing", "VM size is not valid"),
        ("sku.capacity", -1, "sku.capacity"),
    ],
)
def test_a_wrong_set_is_refused_and_leaves_nothing(azure: Asker, where: str, value: Any, said: str) -> None:
    before = azure.kinds()
    with pytest.raises(Refused, match=said):
        azure.ask("PUT", path(azure), changed(body(azure), where, value))
    assert azure.kinds() == before


def test_only_spot_sets_are_restored(azure: Asker) -> None:
    given = body(azure, priority="Regular")
    for word in ("evictionPolicy", "billingProfile"):
        del given["properties"]["virtualMachineProfile"][word]
    with pytest.raises(Refused, match=r"^InvalidParameter: Spot"):
        azure.ask("PUT", path(azure), given)


def test_a_vm_cannot_join_a_set_by_itself(azure: Asker) -> None:
    vm = make(azure)
    with pytest.raises(Refused, match=r"^InvalidParameter"):
        azure.vm("mine", virtualMachineScaleSet=vm.properties["virtualMachineScaleSet"])
