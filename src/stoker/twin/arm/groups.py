"""Resource groups: deleting one deletes everything in it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from stoker.twin import ids
from stoker.twin.arm.requests.ask import ArmAnswer, Ask, accepted, begin, needed, page, route, shown, tagged
from stoker.twin.market import catalog
from stoker.twin.refusal import conflict, group_not_found, invalid
from stoker.twin.state import CloudState, Operation, Resource
from stoker.twin.time import power

_DELETE_S = 2.0


@route("PUT", ids.GROUPS)
def put(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    there = cloud.find(ask.id)
    region = catalog.region_named(str(needed(ask.body, "location")))
    if region is None:
        raise invalid(
            f"The provided location '{ask.body['location']}' is not available for resource group.",
            "LocationNotAvailableForResourceGroup",
        )
    if there and there.region != region.name:
        raise conflict(
            f"Invalid resource group location '{region.name}'. The Resource group already exists in location "
            f"'{there.region}'.",
            "InvalidResourceGroupLocation",
        )
    refuse_deleting(cloud, ask)
    body = {"location": region.name, "tags": dict(ask.body.get("tags") or {})}
    group = Resource(there.id if there else ask.id, body, there.created_at if there else ask.now)
    if ask.body.get("managedBy"):
        group = replace(group, body={**group.body, "managedBy": ask.body["managedBy"]})
    group = group.having(provisioningState="Succeeded")
    return cloud.put(group), ArmAnswer(200 if there else 201, group.answer())


@route("PATCH", ids.GROUPS)
def patch(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    group = require(cloud, ask)
    if "tags" in ask.body:
        group = replace(group, body={**group.body, "tags": dict(ask.body["tags"] or {})})
    return cloud.put(group), ArmAnswer(200, group.answer())


@route("GET", ids.GROUPS)
def get(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    return cloud, ArmAnswer(200, require(cloud, ask).answer())


@route("HEAD", ids.GROUPS)
def exists(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    return cloud, ArmAnswer(204 if cloud.find(ask.id) else 404)


@route("GET", ids.SUBSCRIPTIONS, "resourcegroups")
def list_all(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    return cloud, page(ask, shown(tagged(cloud.all(ids.GROUPS), ask.query.get("$filter", ""))))


@route("DELETE", ids.GROUPS)
def delete(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    """VMs are powered off at once; everything is gone when the operation ends. Repeating it is one deletion."""
    group = require(cloud, ask)
    _check_forced(ask.query.get("forceDeletionTypes", ""))
    under_way = [
        one for one in cloud.operations.values() if one.open and (one.verb, one.about) == ("group.delete", group.id)
    ]
    if under_way:
        return cloud, _accepted(ask, under_way[0])
    cloud = cloud.put(group.having(provisioningState="Deleting"))
    cloud, operation = begin(cloud, ask, "group.delete", _DELETE_S, group.id)
    for resource in cloud.below(group.id):
        if resource.kind == power.VMS:
            cloud = power.destroy(cloud, resource.id, cloud.operations[operation.id], ask.now)
    return cloud, _accepted(ask, operation)


def _check_forced(text: str) -> None:
    for kind in filter(None, text.split(",")):
        if kind.strip().lower() not in (power.VMS.lower(), power.SETS.lower()):
            raise invalid(f"The resource type '{kind}' cannot be deleted by force.", "InvalidForceDeletionTypes")


def _accepted(ask: Ask, operation: Operation) -> ArmAnswer:
    """Groups have no operation status: only the URL of the result."""
    answer = accepted(ask, operation)
    headers = {name: value for name, value in answer.headers.items() if name != "Azure-AsyncOperation"}
    return replace(answer, headers=headers)


def require(cloud: CloudState, ask: Ask) -> Resource:
    group = cloud.find(ids.group_id(ask.target.subscription, ask.target.group))
    if group is None:
        raise group_not_found(ask.target.group)
    return group


def refuse_deleting(cloud: CloudState, ask: Ask) -> None:
    """Nothing can be created in a group that is being deleted."""
    group = cloud.find(ids.group_id(ask.target.subscription, ask.target.group))
    if group and group.properties.get("provisioningState") == "Deleting":
        raise conflict(
            f"The resource group '{group.name}' is in deprovisioning state and cannot perform this operation.",
            "ResourceGroupBeingDeleted",
        )


def region_of(cloud: CloudState, ask: Ask) -> str:
    """The location in the body: a known region, or the group's own."""
    wanted = str(ask.body.get("location") or require(cloud, ask).region)
    region = catalog.region_named(wanted)
    if region is None:
        raise invalid(
            f"The provided location '{wanted}' is not available for resource type '{ask.target.kind}'.",
            "LocationNotAvailableForResourceType",
        )
    return region.name


def top(ask: Ask, region: str) -> dict[str, Any]:
    """What every body has besides its properties."""
    kept = {key: ask.body[key] for key in ("tags", "sku", "zones", "kind", "identity", "plan") if ask.body.get(key)}
    return {"location": region, **kept}
