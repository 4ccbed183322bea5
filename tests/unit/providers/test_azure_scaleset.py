"""The deployment of a node that Azure restores, and when a plain VM is created instead, without an Azure."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest

from stoker.providers.azure import naming
from stoker.providers.azure.account.account import Account
from stoker.providers.azure.market.sizes import AzureSize, Gpus
from stoker.providers.azure.naming import NodePlace, duration, refuses_set
from stoker.providers.azure.refusals import translated
from stoker.providers.azure.setup.resources import NAMESPACES
from stoker.providers.azure.template import MachineChoice, NodeSite, deployment

GROUP = naming.group_id("s", "g")
SET = f"{GROUP}/providers/Microsoft.Compute/virtualMachineScaleSets/node"
IDENTITY = f"{GROUP}/providers/Microsoft.ManagedIdentity/userAssignedIdentities/node"


def parts(site: NodeSite, machine: MachineChoice) -> dict[str, dict[str, Any]]:
    made = deployment(site, machine, {"a": "b"}, "ssh-ed25519 AAAA")["template"]["resources"]
    return {one["type"].rsplit("/", 1)[1]: one for one in made}


def restored(account: Account, machine: MachineChoice) -> dict[str, dict[str, Any]]:
    return parts(NodeSite(account, NodePlace("g", set=True), "r0le", GROUP), machine)


def plain_one(account: Account, machine: MachineChoice) -> dict[str, dict[str, Any]]:
    return parts(NodeSite(account, NodePlace("g"), "r0le", GROUP), machine)


def test_a_node_that_azure_restores_has_the_disk_the_login_and_the_price_of_a_plain_one() -> None:
    machine = MachineChoice("Standard_D2s_v5", "eastus", spot=True, max_price=Decimal("0.5"), restore_s=86_400)
    made, plain = restored(Account("s"), machine), plain_one(Account("s"), machine)["virtualMachines"]["properties"]
    profile = made["virtualMachineScaleSets"]["properties"]["virtualMachineProfile"]
    assert set(made) == {
        *("virtualMachineScaleSets", "userAssignedIdentities", "roleAssignments", "virtualNetworks"),
        "networkSecurityGroups",
    }
    for word in ("storageProfile", "securityProfile", "priority", "evictionPolicy", "billingProfile"):
        assert profile[word] == plain[word]
    assert profile["osProfile"].pop("computerNamePrefix") == plain["osProfile"].pop("computerName")
    assert profile["osProfile"] == plain["osProfile"]
    policy = made["virtualMachineScaleSets"]["properties"]["spotRestorePolicy"]
    assert policy == {"enabled": True, "restoreTimeout": "PT1440M"}


def test_an_instance_has_a_way_out_and_nothing_comes_in() -> None:
    """Instances of Flexible sets reach nothing without an address of their own."""
    made = restored(Account("s"), MachineChoice("x", "eastus", spot=True))
    network = made["virtualMachineScaleSets"]["properties"]["virtualMachineProfile"]["networkProfile"]
    (card,) = network["networkInterfaceConfigurations"]
    (address,) = card["properties"]["ipConfigurations"]
    public = address["properties"]["publicIPAddressConfiguration"]
    assert public["sku"] == {"name": "Standard"} and public["properties"] == {"deleteOption": "Delete"}
    assert card["properties"]["networkSecurityGroup"]["id"].endswith("/networkSecurityGroups/node")
    assert made["networkSecurityGroups"]["properties"]["securityRules"] == []
    subnet = made["virtualNetworks"]["properties"]["subnets"][0]["properties"]
    assert subnet["defaultOutboundAccess"] is True
    assert card["properties"]["deleteOption"] == "Delete" and network["networkApiVersion"] == "2022-11-01"
    assert "enableAcceleratedNetworking" in card["properties"]


def test_the_identity_of_a_set_is_its_own_and_its_role_is_for_the_group_or_the_set_alone() -> None:
    alone = restored(Account("s", role="r0le"), MachineChoice("x", "eastus", spot=True))
    role = alone["roleAssignments"]
    assert "scope" not in role
    assert role["properties"]["principalId"] == f"[reference('{IDENTITY}', '2023-01-31').principalId]"
    assert role["dependsOn"] == [IDENTITY], "no VM without its right to remove itself"
    named = role["name"].strip("[]")
    assert f"[resourceId('{role['type']}', {named})]" in alone["virtualMachineScaleSets"]["dependsOn"]
    place = replace(naming.shared_place("g", "r-1"), set=True)
    shared = NodeSite(Account("s", practitioner="p"), place, "r0le", place.node_id("s"))
    made = parts(shared, MachineChoice("x", "eastus", spot=True))
    assert set(made) == {"virtualMachineScaleSets", "userAssignedIdentities", "roleAssignments"}
    assert made["roleAssignments"]["scope"] == SET.removesuffix("node") + "stoker-r-1"
    assert made["roleAssignments"]["dependsOn"] == [made["roleAssignments"]["scope"]]
    for name in ("stoker-r-1_ab12cd34", "stoker-r-1_nic-ab12cd34", "stoker-r-1_ip-ab12cd34", "stoker-r-1"):
        assert place.owns(name)
    assert not place.owns("stoker-r-10_ab12cd34")


def test_drivers_are_part_of_what_a_restored_machine_is_made_from() -> None:
    traits = AzureSize("Standard_NC4as_T4_v3", "", 4, 28.0, "eastus", spot=True, gpus=Gpus(1, "T4"))
    machine = MachineChoice("Standard_NC4as_T4_v3", "eastus", spot=True, traits=traits)
    image = "Canonical:ubuntu-24_04-lts:server:latest"
    plain, made = plain_one(Account("s", image=image), machine), restored(Account("s", image=image), machine)
    profile = made["virtualMachineScaleSets"]["properties"]["virtualMachineProfile"]
    (driver,) = profile["extensionProfile"]["extensions"]
    assert driver["properties"] == plain["extensions"]["properties"]


@pytest.mark.parametrize(
    ("code", "message", "plain"),
    [
        ("BadRequest", "Spot restore policy is not supported in Flexible orchestration mode.", True),
        ("InvalidParameter", "The value of parameter orchestrationMode is invalid.", True),
        ("RequestDisallowedByPolicy", "Resource 'node' was disallowed by policy.", True),
        ("FailedIdentityOperation", "User assigned identity could not be assigned.", True),
        ("AllocationFailed", "Allocation failed for the scale set.", False),
        ("SkuNotAvailable", "not available for virtual machine scale sets.", False),
        ("AuthorizationFailed", "no action 'Microsoft.Compute/virtualMachineScaleSets/write'", False),
        ("PlatformImageNotFound", "The platform image is not available.", False),
        ("SpotPriceGreaterThanProvidedMaxPrice", "the max price of the scale set is lower", False),
    ],
)
def test_a_plain_machine_is_made_only_where_azure_refuses_the_set_itself(code: str, message: str, plain: bool) -> None:
    error = SimpleNamespace(code="DeploymentFailed", message="", details=[SimpleNamespace(code=code, message=message)])
    refusal = translated(_Refusal(error), "starting r-1")
    assert refuses_set(refusal) is plain


class _Refusal(Exception):
    def __init__(self, error: Any) -> None:
        super().__init__(error.message)
        self.error = error


def test_a_restore_is_tried_for_some_minutes_at_least_and_in_whole_ones() -> None:
    assert [duration(one) for one in (1, 301, 3600, 86_400)] == ["PT5M", "PT6M", "PT60M", "PT1440M"]


def test_a_set_up_registers_every_service_that_a_node_needs() -> None:
    made = restored(Account("s"), MachineChoice("x", "eastus", spot=True)).values()
    used = {one["type"].split("/")[0] for one in made} - {"Microsoft.Authorization"}  # every subscription has that one
    assert used <= set(NAMESPACES)
