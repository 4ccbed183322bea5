"""Proximity placement groups of the twin, as pure transitions."""

from __future__ import annotations

from typing import Any

import pytest
from twinasks import GROUP, REGION, Asker

from stoker.twin.refusal import Refused

KIND = "providers/Microsoft.Compute/proximityPlacementGroups"


@pytest.fixture
def azure() -> Asker:
    asker = Asker()
    asker.group()
    asker.network()
    return asker


def near(azure: Asker, region: str = REGION, **properties: Any) -> str:
    path = f"/resourceGroups/{GROUP}/{KIND}/near"
    made = azure.ask("PUT", path, {"location": region, "properties": properties})
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
