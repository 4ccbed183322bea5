"""A subscription that is disabled, not registered for a service, or bound by policies refuses as Azure does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from twinasks import GROUP, REGION, Asker

from stoker.twin.refusal import Refused

SIZES, PLACES = "cccc23c7-8427-4f53-ad12-b6a63eb452b3", "e56962a6-4747-49cd-b67b-bf8b01975c4c"


@pytest.fixture
def azure() -> Asker:
    azure = Asker()
    azure.group()
    azure.network()
    return azure


def policy(azure: Asker, definition: str, parameter: str, value: Any, scope: str = "", **more: Any) -> str:
    name = f"{scope}/providers/Microsoft.Authorization/policyAssignments/rule"
    definition_id = f"/providers/Microsoft.Authorization/policyDefinitions/{definition}"
    properties = {"policyDefinitionId": definition_id, "parameters": {parameter: {"value": value}}, **more}
    azure.ask("PUT", name, {"properties": properties})
    return name


def validate(azure: Asker, size: str, word: str = "validate") -> Any:
    part = {"type": "Microsoft.Compute/virtualMachines", "apiVersion": "2024-07-01", "name": "vm"}
    body = {"properties": {"template": {"resources": [{**part, **azure.vm_body("vm", size)}]}}}
    return azure.ask("POST", f"/resourceGroups/{GROUP}/providers/Microsoft.Resources/deployments/d/{word}", body)


def test_a_disabled_subscription_can_be_read_and_not_written(azure: Asker) -> None:
    azure.cloud = replace(azure.cloud, standing="Disabled")
    assert azure.ask("GET", "").body["state"] == "Disabled"
    with pytest.raises(Refused, match="ReadOnlyDisabledSubscription"):
        azure.group("another")
    azure.ask("DELETE", f"/resourceGroups/{GROUP}")


def test_a_subscription_with_a_warning_works(azure: Asker) -> None:
    azure.cloud = replace(azure.cloud, standing="Warned")
    assert azure.ready_vm().power == "running"


def test_a_service_that_is_not_registered_refuses_until_it_is(azure: Asker) -> None:
    azure.ask("POST", "/providers/Microsoft.Compute/unregister")
    assert azure.ask("GET", "/providers/Microsoft.Compute").body["registrationState"] == "NotRegistered"
    with pytest.raises(Refused, match="MissingSubscriptionRegistration"):
        azure.vm()
    azure.ask("POST", "/providers/Microsoft.Compute/register")
    assert azure.vm().status == 201


def test_a_policy_refuses_sizes_and_names_its_assignment(azure: Asker) -> None:
    policy(azure, SIZES, "listOfAllowedSKUs", ["Standard_D2s_v5"], displayName="Small machines only")
    with pytest.raises(Refused, match=r"^RequestDisallowedByPolicy: .*'vm'") as refused:
        azure.vm()
    (info,) = refused.value.body()["additionalInfo"]
    assert info["info"]["policyAssignmentDisplayName"] == "Small machines only"
    assert azure.vm("small", size="Standard_D2s_v5").status == 201


def test_a_policy_refuses_regions_in_whichever_spelling(azure: Asker) -> None:
    name = policy(azure, PLACES, "listOfAllowedLocations", ["East US"])
    with pytest.raises(Refused, match="RequestDisallowedByPolicy"):
        azure.vm()
    azure.ask("DELETE", name)
    policy(azure, PLACES, "listOfAllowedLocations", [REGION])
    assert azure.vm().status == 201


def test_a_policy_that_is_not_enforced_or_holds_elsewhere_refuses_nothing(azure: Asker) -> None:
    azure.group("another")
    policy(azure, SIZES, "listOfAllowedSKUs", [], scope="/resourceGroups/another")
    policy(azure, SIZES, "listOfAllowedSKUs", [], enforcementMode="DoNotEnforce")
    assert azure.vm().status == 201


def test_validation_tells_what_a_policy_denies_and_makes_nothing(azure: Asker) -> None:
    assert validate(azure, "Standard_D4s_v5").status == 200
    policy(azure, SIZES, "listOfAllowedSKUs", ["Standard_D2s_v5"])
    with pytest.raises(Refused, match="InvalidTemplateDeployment") as refused:
        validate(azure, "Standard_D4s_v5")
    assert refused.value.details[0]["code"] == "RequestDisallowedByPolicy"
    assert not azure.cloud.instances


def test_what_if_lists_what_a_deployment_would_make(azure: Asker) -> None:
    answer = validate(azure, "Standard_D4s_v5", "whatIf")
    azure.pass_time(1.0)
    (operation,) = [one for one in azure.cloud.operations.values() if one.result]
    assert answer.status == 202
    assert [one["changeType"] for one in operation.result["properties"]["changes"]] == ["Create"]
    assert not azure.cloud.instances


def test_permissions_list_what_the_caller_may_do_in_a_group(azure: Asker) -> None:
    path = f"/resourceGroups/{GROUP}/providers/Microsoft.Authorization/permissions"
    assert azure.ask("GET", path).body["value"][0]["actions"] == ["*"]
