"""Proximity placement groups of the twin, as pure transitions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from twinasks import GROUP, REGION, Asker

from stoker.twin.refusal import Refused
from stoker.twin.time.weather import OrderedFault

KIND = "providers/Microsoft.Compute/proximityPlacementGroups"


@pytest.fixture
def azure() -> Asker:
    asker = Asker()
    asker.group()
    asker.network()
    return asker


def near(azure: Asker, region: str = REGION, zones: tuple[str, ...] = (), **properties: Any) -> str:
    path = f"/resourceGroups/{GROUP}/{KIND}/near"
    made = azure.ask("PUT", path, {"location": region, "zones": list(zones), "properties": properties})
    return str(made.body["id"])


def vm_near(azure: Asker, name: str, id: str) -> None:
    body = azure.vm_body(name)
    body["properties"]["proximityPlacementGroup"] = {"id": id}
    azure.ask("PUT", azure.path(name), body)


def test_it_lists_its_machines_and_goes_only_without_them(azure: Asker) -> None:
    id = near(azure)
    vm_near(azure, "vm", id)
    azure.pass_time(5)
    found = azure.ask("GET", f"/resourceGroups/{GROUP}/{KIND}/near").body
    assert found["properties"]["proximityPlacementGroupType"] == "Standard"
    assert [one["id"].rsplit("/", 1)[1] for one in found["properties"]["virtualMachines"]] == ["vm"]
    assert azure.ask("GET", azure.path("vm")).body["properties"]["proximityPlacementGroup"]["id"] == id
    with pytest.raises(Refused, match="OperationNotAllowed"):
        azure.ask("DELETE", f"/resourceGroups/{GROUP}/{KIND}/near")
    azure.ask("DELETE", azure.path("vm"))
    azure.pass_time(5)
    azure.ask("DELETE", f"/resourceGroups/{GROUP}/{KIND}/near")
    azure.pass_time(5)
    assert azure.ask("GET", "/providers/Microsoft.Compute/proximityPlacementGroups").body["value"] == []


@pytest.mark.parametrize("region", ["westus2", ""])
def test_a_machine_near_what_is_not_in_its_region_is_refused(azure: Asker, region: str) -> None:
    id = near(azure, region) if region else "/subscriptions/s/near"
    with pytest.raises(Refused, match="InvalidResourceReference"):
        vm_near(azure, "vm", id)


def test_a_type_that_azure_has_not_is_refused(azure: Asker) -> None:
    with pytest.raises(Refused, match="proximityPlacementGroupType"):
        near(azure, proximityPlacementGroupType="Close")


def test_a_machine_that_has_no_place_beside_the_others_is_refused_for_its_constraint(azure: Asker) -> None:
    id = near(azure)
    azure.cloud = replace(azure.cloud, faults=(OrderedFault("allocation"),))
    vm_near(azure, "vm", id)
    azure.pass_time(5)
    (operation,) = [one for one in azure.cloud.operations.values() if one.verb == "vm.create"]
    assert operation.error["code"] == "OverconstrainedAllocationRequest"


def test_a_group_with_an_intent_takes_only_its_sizes_and_its_zone(azure: Asker) -> None:
    with pytest.raises(Refused, match="intent"):
        near(azure, zones=("1",))
    id = near(azure, zones=("1",), intent={"vmSizes": ["Standard_D2s_v5"]})
    with pytest.raises(Refused, match=r"^InvalidParameter: .*\bStandard_D4s_v5\b"):
        vm_near(azure, "vm", id)
    id = near(azure, zones=("1",), intent={"vmSizes": ["Standard_D4s_v5"]})
    with pytest.raises(Refused, match="zone 1"):
        vm_near(azure, "vm", id)


def test_an_intent_includes_what_is_there_and_a_machine_moves_only_while_it_is_off(azure: Asker) -> None:
    vm_near(azure, "vm", near(azure))
    azure.pass_time(5)
    with pytest.raises(Refused, match="OperationNotAllowed"):
        near(azure, intent={"vmSizes": ["Standard_D2s_v5"]})
    other = azure.ask("PUT", f"/resourceGroups/{GROUP}/{KIND}/other", {"location": REGION}).body["id"]
    change = {"properties": {"proximityPlacementGroup": {"id": other}}}
    with pytest.raises(Refused, match="OperationNotAllowed"):
        azure.ask("PATCH", azure.path("vm"), change)
    azure.ask("POST", f"{azure.path('vm')}/deallocate")
    azure.pass_time(5)
    azure.ask("PATCH", azure.path("vm"), change)
    azure.pass_time(5)
    members = [
        len(azure.ask("GET", f"/resourceGroups/{GROUP}/{KIND}/{name}").body["properties"]["virtualMachines"])
        for name in ("near", "other")
    ]
    assert members == [0, 1]
