"""What happens to a VM in the twin, as pure transitions: no clock, no socket, no machine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from twinasks import IMAGE, Asker

from stoker.twin.market import prices as meter
from stoker.twin.refusal import Refused
from stoker.twin.state import PriceOrder
from stoker.twin.time import passing
from stoker.twin.time.weather import OrderedFault, Weather

CUSTOM_SCRIPT = {"publisher": "Microsoft.Azure.Extensions", "type": "CustomScript", "typeHandlerVersion": "2.1"}
SPOT: dict[str, Any] = {"priority": "Spot", "evictionPolicy": "Deallocate", "billingProfile": {"maxPrice": -1}}


@pytest.fixture
def azure() -> Asker:
    return Asker()


def test_a_vm_is_creating_until_its_machine_is_made_and_then_runs(azure: Asker) -> None:
    azure.group()
    azure.network()
    answer = azure.vm()
    assert answer.status == 201
    assert answer.body["properties"]["provisioningState"] == "Creating"
    assert "Azure-AsyncOperation" in answer.headers
    azure.pass_time(60, chores=False)
    assert azure.power() == "starting"
    azure.pass_time()
    assert azure.power() == "running"
    assert azure.ask("GET", azure.path()).body["properties"]["provisioningState"] == "Succeeded"
    assert azure.done == [("create", "vm")]


def test_the_same_put_again_makes_no_second_machine(azure: Asker) -> None:
    azure.ready_vm()
    first = azure.ask("GET", azure.path()).body["properties"]["vmId"]
    assert azure.vm().status == 200
    azure.pass_time(2)
    assert azure.ask("GET", azure.path()).body["properties"]["vmId"] == first
    assert azure.done == [("create", "vm")]


def test_custom_data_cannot_be_read_back_or_changed(azure: Asker) -> None:
    azure.ready_vm()
    assert "customData" not in str(azure.ask("GET", azure.path()).body)
    body = azure.vm_body("vm")
    body["properties"]["osProfile"]["customData"] = "b3RoZXI="
    with pytest.raises(Refused, match=r"PropertyChangeNotAllowed.*customData"):
        azure.ask("PUT", azure.path(), body)


def test_tags_can_be_changed_one_at_a_time(azure: Asker) -> None:
    azure.ready_vm(tags={"run": "a", "lease": "1"})
    azure.ask(
        "PATCH",
        azure.path("vm", "providers/Microsoft.Resources/tags/default"),
        {"operation": "Merge", "properties": {"tags": {"lease": "2"}}},
    )
    assert azure.ask("GET", azure.path()).body["tags"] == {"run": "a", "lease": "2"}


def test_a_deallocated_vm_costs_nothing_but_its_disk_and_starts_on_the_same_machine(azure: Asker) -> None:
    name = azure.ready_vm().name
    azure.ask("POST", azure.path("vm", "deallocate"))
    azure.pass_time(1)
    assert azure.power() == "deallocated"
    open_ = [charge.meter for charge in azure.cloud.charges if charge.until is None]
    assert open_ == ["disk"]
    azure.ask("POST", azure.path("vm", "start"))
    azure.pass_time(1)
    assert (azure.power(), azure.instance().name) == ("running", name)
    assert [verb for verb, _ in azure.done] == ["create", "power_off", "start", "events"]


def test_a_vm_that_shut_itself_down_is_stopped_and_still_costs(azure: Asker) -> None:
    vm = azure.ready_vm().vm
    azure.cloud = passing.guest_stopped(azure.cloud, vm, azure.now)
    assert azure.power() == "stopped"
    before = meter.bill(azure.cloud, azure.now)["usd"]
    assert meter.bill(azure.cloud, azure.now + 3600)["usd"] > before + 0.2


def test_deleting_a_vm_takes_what_was_to_go_with_it_and_leaves_the_rest(azure: Asker) -> None:
    azure.ready_vm()
    azure.ask("DELETE", azure.path())
    assert azure.ask("GET", azure.path()).body["properties"]["provisioningState"] == "Deleting"
    with pytest.raises(Refused, match=r"^OperationNotAllowed"):
        azure.ask("POST", azure.path("vm", "start"))
    azure.pass_time(2)
    assert azure.kinds() == ["resourceGroups", "virtualNetworks"]
    assert azure.ask("DELETE", azure.path()).status == 204
    assert all(charge.until is not None for charge in azure.cloud.charges)


def test_a_disk_without_delete_option_stays_and_costs_when_its_vm_goes(azure: Asker) -> None:
    azure.ready_vm(storageProfile={"imageReference": IMAGE, "osDisk": {"createOption": "FromImage"}})
    azure.ask("DELETE", azure.path())
    azure.pass_time(2)
    assert azure.kinds() == ["disks", "resourceGroups", "virtualNetworks"]
    assert [charge.meter for charge in azure.cloud.charges if charge.until is None] == ["disk"]


def test_deleting_a_group_deletes_all_in_it_and_nothing_can_be_made_there_meanwhile(azure: Asker) -> None:
    azure.ready_vm("one")
    azure.ready_vm("two")
    assert azure.ask("DELETE", "/resourceGroups/g").status == 202
    with pytest.raises(Refused, match="ResourceGroupBeingDeleted"):
        azure.vm("three")
    azure.pass_time(5)
    assert not azure.cloud.resources
    assert not azure.cloud.instances
    assert sorted(azure.done[-2:]) == [("destroy", "one"), ("destroy", "two")]
    with pytest.raises(Refused, match="ResourceGroupNotFound"):
        azure.ask("GET", "/resourceGroups/g")


def test_an_evicted_vm_gets_a_notice_first_and_is_then_deallocated(azure: Asker) -> None:
    azure.ready_vm(**SPOT)
    assert azure.ask("POST", azure.path("vm", "simulateEviction")).status == 204
    assert [notice.event for notice in azure.cloud.notices.values()] == ["Preempt"]
    azure.pass_time(29)
    assert azure.power() == "running"
    azure.pass_time(1)
    assert azure.power() == "deallocated"
    assert [verb for verb, _ in azure.done] == ["create", "events", "power_off"]


def test_an_evicted_vm_with_the_policy_delete_is_gone(azure: Asker) -> None:
    azure.ready_vm(**{**SPOT, "evictionPolicy": "Delete"})
    azure.ask("POST", azure.path("vm", "simulateEviction"))
    azure.pass_time(30)
    azure.pass_time(1)
    assert azure.kinds() == ["resourceGroups", "virtualNetworks"]


def test_only_a_spot_vm_can_be_evicted_for_practice(azure: Asker) -> None:
    azure.ready_vm()
    with pytest.raises(Refused, match="OperationNotAllowed"):
        azure.ask("POST", azure.path("vm", "simulateEviction"))


def test_a_spot_vm_is_evicted_when_the_price_passes_its_limit(azure: Asker) -> None:
    azure.ready_vm(**{**SPOT, "billingProfile": {"maxPrice": 0.5}})
    order = PriceOrder("Standard_D4s_v5", "westeurope", azure.now, 0.6)
    azure.cloud = replace(azure.cloud, prices=(order,), weather=Weather(notices_s=(8.0,)))
    azure.pass_time(1)
    assert len(azure.cloud.notices) == 1
    azure.pass_time(8)
    assert azure.power() == "deallocated"
    with pytest.raises(Refused, match=r"^SpotPriceGreaterThanProvidedMaxPrice: .*'0\.5\b.*'0\.6\b"):
        azure.ask("POST", azure.path("vm", "start"))


def test_a_vm_that_requested_it_gets_a_notice_before_it_is_deleted(azure: Asker) -> None:
    profile = {"terminateNotificationProfile": {"enable": True, "notBeforeTimeout": "PT5M"}}
    azure.ready_vm(scheduledEventsProfile=profile)
    azure.ask("DELETE", azure.path())
    azure.pass_time(290)
    assert [notice.event for notice in azure.cloud.notices.values()] == ["Terminate"]
    azure.pass_time(11)
    azure.pass_time(2)
    assert azure.kinds() == ["resourceGroups", "virtualNetworks"]


def test_a_lack_of_machines_fails_the_operation_and_leaves_a_failed_vm_that_can_be_had_later(
    azure: Asker,
) -> None:
    azure.group()
    azure.network()
    azure.cloud = replace(azure.cloud, faults=(OrderedFault("allocation"),))
    operation = azure.vm().headers["Azure-AsyncOperation"].split("?")[0].removeprefix("https://twin")
    azure.pass_time(2)
    told = azure.ask("GET", operation.split(azure.cloud.subscription)[1]).body
    assert (told["status"], told["error"]["code"]) == ("Failed", "AllocationFailed")
    assert azure.ask("GET", azure.path()).body["properties"]["provisioningState"] == "Failed"
    assert azure.vm().status == 201
    azure.pass_time(2)
    assert azure.power() == "running"
    assert azure.kinds().count("disks") == 1


def test_a_start_that_finds_no_machine_leaves_the_vm_deallocated(azure: Asker) -> None:
    azure.ready_vm(**SPOT)
    azure.ask("POST", azure.path("vm", "deallocate"))
    azure.pass_time(1)
    azure.cloud = replace(azure.cloud, faults=(OrderedFault("allocation"),))
    azure.ask("POST", azure.path("vm", "start"))
    azure.pass_time(1)
    assert azure.power() == "deallocated"
    azure.ask("POST", azure.path("vm", "start"))
    azure.pass_time(1)
    assert azure.power() == "running"


def test_a_custom_script_extension_runs_its_command_in_the_machine(azure: Asker) -> None:
    azure.ready_vm()
    script = {**CUSTOM_SCRIPT, "protectedSettings": {"commandToExecute": "true"}}
    body = {"properties": {"publisher": "Microsoft.Azure.Extensions", **script}}
    azure.ask("PUT", azure.path("vm", "extensions/setup"), body)
    azure.pass_time(1)
    assert azure.done[-1] == ("run", "vm")
    view = azure.ask("GET", azure.path("vm", "instanceView")).body
    assert view["extensions"][0]["statuses"][0]["code"] == "ProvisioningState/succeeded"
    assert "commandToExecute" not in str(azure.ask("GET", azure.path("vm", "extensions/setup")).body)


def test_commands_need_a_vm_that_runs(azure: Asker) -> None:
    azure.ready_vm()
    azure.ask("POST", azure.path("vm", "deallocate"))
    azure.pass_time(1)
    with pytest.raises(Refused, match=r"^OperationNotAllowed"):
        azure.ask("POST", azure.path("vm", "runCommand"), {"commandId": "RunShellScript", "script": ["true"]})
