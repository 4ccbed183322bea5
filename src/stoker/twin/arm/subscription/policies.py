"""Budgets and policies: limits of an organisation."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from stoker.twin import ids
from stoker.twin.arm.ask import ArmAnswer, Ask, needed, page, route, shown
from stoker.twin.market import catalog, prices
from stoker.twin.refusal import Refused, invalid, not_found
from stoker.twin.state import CloudState, Resource

BUDGETS = "Microsoft.Consumption/budgets"


@route("PUT", BUDGETS)
def put_budget(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    for word in ("amount", "category", "timeGrain", "timePeriod"):
        needed(ask.body, "properties", word)
    begins = str(needed(ask.body, "properties", "timePeriod", "startDate"))
    if begins[8:10] != "01":
        raise invalid(f"The start date '{begins}' of a budget must be the first day of a month.", "400")
    there = cloud.find(ask.id)
    budget = Resource(ask.id, {"properties": dict(ask.body["properties"])}, there.created_at if there else ask.now)
    cloud = cloud.put(budget)
    return cloud, ArmAnswer(200 if there else 201, _told(cloud, ask, budget))


@route("GET", BUDGETS)
def get_budget(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    budget = cloud.find(ask.id)
    if budget is None:
        raise not_found(BUDGETS, ask.target.name, ask.target.group)
    return cloud, ArmAnswer(200, _told(cloud, ask, budget))


@route("GET", "Microsoft.Consumption", "budgets")
def list_budgets(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    here = [one for one in cloud.all(BUDGETS) if one.target.scope.lower() == ask.target.scope.lower()]
    return cloud, page(ask, [_told(cloud, ask, one) for one in here])


@route("DELETE", BUDGETS)
def delete_budget(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    return cloud.drop(ask.id), ArmAnswer(200 if cloud.find(ask.id) else 204)


def _told(cloud: CloudState, ask: Ask, budget: Resource) -> dict[str, Any]:
    """With the spending since the twin was created; it does not distinguish months."""
    scope = budget.target.scope.lower() + "/"
    charges = [charge for charge in cloud.charges if charge.resource.lower().startswith(scope)]
    spent = round(sum(prices.usd(cloud, charge, ask.now) for charge in charges), 6)
    return budget.having(currentSpend={"amount": spent, "unit": "USD"}).answer()


ASSIGNMENTS = "Microsoft.Authorization/policyAssignments"
_EXEMPT = ("microsoft.authorization/", "microsoft.resources/deployments")  # not evaluated by Azure


@dataclass(frozen=True, slots=True)
class Definition:
    """A built-in definition: its title, its parameter, and whether it denies a request."""

    title: str
    parameter: str
    denies: Callable[[Ask, Any], bool]


def _place(ask: Ask, allowed: list[str]) -> bool:
    wanted = catalog.region_named(str(ask.body.get("location") or ""))
    return wanted is not None and wanted.name not in {one.replace(" ", "").lower() for one in allowed}


def _resource_place(ask: Ask, allowed: list[str]) -> bool:
    return ask.target.kind != ids.GROUPS and _place(ask, allowed)


def _group_place(ask: Ask, allowed: list[str]) -> bool:
    return ask.target.kind == ids.GROUPS and _place(ask, allowed)


def _size(ask: Ask, allowed: list[str]) -> bool:
    given = ask.body.get("properties") or {}
    wanted = str((given.get("hardwareProfile") or {}).get("vmSize") or (ask.body.get("sku") or {}).get("name") or "")
    machine = ask.target.kind.lower() in (
        "microsoft.compute/virtualmachines",
        "microsoft.compute/virtualmachinescalesets",
    )
    return machine and bool(wanted) and wanted.lower() not in {one.lower() for one in allowed}


def _kind(ask: Ask, forbidden: list[str]) -> bool:
    return ask.target.kind.lower() in {one.lower() for one in forbidden}


def _tag(ask: Ask, name: str) -> bool:
    return ask.target.kind != ids.GROUPS and "location" in ask.body and name not in (ask.body.get("tags") or {})


# By Azure's own ids.
DEFINITIONS = {
    "e56962a6-4747-49cd-b67b-bf8b01975c4c": Definition("Allowed locations", "listOfAllowedLocations", _resource_place),
    "e765b5de-1225-4ba3-bd56-1ac6695af988": Definition(
        "Allowed locations for resource groups", "listOfAllowedLocations", _group_place
    ),
    "cccc23c7-8427-4f53-ad12-b6a63eb452b3": Definition("Allowed virtual machine size SKUs", "listOfAllowedSKUs", _size),
    "6c112d4e-5bc7-47ae-a041-ea2d9dccd749": Definition(
        "Not allowed resource types", "listOfResourceTypesNotAllowed", _kind
    ),
    "871b6d14-10aa-478d-b590-94f262ecfa99": Definition("Require a tag on resources", "tagName", _tag),
}


@route("PUT", ASSIGNMENTS)
def put_policy(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    definition = str(needed(ask.body, "properties", "policyDefinitionId")).rsplit("/", 1)[-1].lower()
    known = DEFINITIONS.get(definition)
    if known is None:
        nearest = ", ".join(f"{one.title} ({id})" for id, one in DEFINITIONS.items())
        raise Refused(
            404,
            "PolicyDefinitionNotFound",
            f"The policy definition '{definition}' could not be found: the twin has {nearest}.",
        )
    parameters = ask.body["properties"].get("parameters") or {}
    given = parameters.get(known.parameter) if isinstance(parameters, Mapping) else None
    if not isinstance(given, Mapping) or "value" not in given:
        raise invalid(
            f"The policy assignment '{ask.target.name}' is missing the parameter(s) '{known.parameter}' as defined in "
            f"the policy definition '{definition}'.",
            "MissingPolicyParameter",
        )
    there = cloud.find(ask.id)
    properties = {"displayName": known.title, "enforcementMode": "Default", **ask.body["properties"]}
    assignment = Resource(ask.id, {"properties": {**properties, "scope": ask.target.scope}}, ask.now)
    return cloud.put(assignment), ArmAnswer(200 if there else 201, assignment.answer())


@route("GET", ASSIGNMENTS)
def get_policy(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    there = cloud.find(ask.id)
    if there is None:
        raise not_found(ASSIGNMENTS, ask.target.name, ask.target.group)
    return cloud, ArmAnswer(200, there.answer())


@route("DELETE", ASSIGNMENTS)
def delete_policy(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    there = cloud.find(ask.id)
    return (cloud.drop(ask.id), ArmAnswer(200, there.answer())) if there else (cloud, ArmAnswer(204))


@route("GET", "Microsoft.Authorization", "policyAssignments")
def list_policies(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    """Those that apply at the scope."""
    return cloud, page(ask, shown([one for one in cloud.all(ASSIGNMENTS) if _holds(one, ask.target.scope)]))


def check_policies(cloud: CloudState, ask: Ask) -> None:
    """Refused where an assignment at the scope or above it denies the request."""
    kind = ask.target.kind.lower()
    if ask.method not in ("PUT", "PATCH") or kind.startswith(_EXEMPT):
        return
    _check_region(cloud, ask)
    for one in cloud.all(ASSIGNMENTS):
        definition = str(one.properties["policyDefinitionId"]).rsplit("/", 1)[-1].lower()
        known = DEFINITIONS[definition]
        if one.properties.get("enforcementMode") != "Default" or not _holds(one, ask.id):
            continue
        if known.denies(ask, one.properties["parameters"][known.parameter]["value"]):
            raise _denied(ask, one, definition, known)


def _check_region(cloud: CloudState, ask: Ask) -> None:
    """Azure closes regions to subscriptions that are new or of students; it still creates groups there."""
    region = catalog.region_named(str(ask.body.get("location") or ""))
    if region and ask.target.kind != ids.GROUPS and f"{region.name}/" in cloud.restrictions:
        raise Refused(
            403,
            "RequestDisallowedByAzure",
            f"Resource '{ask.target.name}' was disallowed by Azure: This policy maintains a set of best available "
            "regions where your subscription can deploy resources. The objective of this policy is to ensure that your "
            "subscription has full access to Azure services with optimal performance. Should you need additional or "
            "different regions, contact support.",
            more={"target": ask.target.name},
        )


def _holds(assignment: Resource, scope: str) -> bool:
    return f"{scope.lower()}/".startswith(f"{assignment.target.scope.lower()}/")


def _denied(ask: Ask, assignment: Resource, definition: str, known: Definition) -> Refused:
    title, definition_id = assignment.properties["displayName"], _definition_id(definition)
    identifiers = [
        {
            "policyAssignment": {"name": title, "id": assignment.id},
            "policyDefinition": {"name": known.title, "id": definition_id},
        }
    ]
    info = {
        "policyDefinitionId": definition_id,
        "policyDefinitionName": definition,
        "policyDefinitionDisplayName": known.title,
        "policyDefinitionEffect": "deny",
        "policyAssignmentId": assignment.id,
        "policyAssignmentName": assignment.name,
        "policyAssignmentDisplayName": title,
        "policyAssignmentScope": assignment.target.scope,
    }
    return Refused(
        403,
        "RequestDisallowedByPolicy",
        f"Resource '{ask.target.name}' was disallowed by policy. Policy identifiers: "
        f"'{json.dumps(identifiers, separators=(',', ':'))}'.",
        more={"target": ask.target.name, "additionalInfo": [{"type": "PolicyViolation", "info": info}]},
    )


def _definition_id(name: str) -> str:
    return f"/providers/Microsoft.Authorization/policyDefinitions/{name}"
