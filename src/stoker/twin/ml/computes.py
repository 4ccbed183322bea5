"""Compute clusters: AmlCompute of 0 to N nodes, dedicated or of low priority."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from stoker.twin.arm import resources
from stoker.twin.arm.ask import ArmAnswer, Ask, accepted, begin, needed, page, route
from stoker.twin.market import catalog
from stoker.twin.ml import COMPUTES, WORKSPACES, nodes
from stoker.twin.ml.workspaces import workspace_of
from stoker.twin.refusal import conflict, invalid
from stoker.twin.state import CloudState, Resource

_PUT_S, _DELETE_S = 0.5, 1.0
_NAME = re.compile(r"[A-Za-z](?:[A-Za-z0-9-]{0,30}[A-Za-z0-9])$")
_DURATION = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:([\d.]+)S)?)?$")
_MOST = 65_000
_LOW = "LowPriority"


@route("PUT", COMPUTES)
def put(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    """The size and the priority never change; how many nodes and for how long they idle does."""
    workspace = workspace_of(cloud, ask)
    if not _NAME.match(ask.target.name):
        raise invalid(f"Compute name '{ask.target.name}' is invalid: 2 to 32 letters, digits and '-'.", "UserError")
    given = needed(ask.body, "properties")
    if given.get("computeType") != "AmlCompute":
        raise invalid("The twin has computes of type AmlCompute, and no others.", "UserError")
    wanted = _checked(ask, workspace, dict(needed(given, "properties")))
    there = cloud.find(ask.id)
    if there:
        for word in ("vmSize", "vmPriority"):
            if str(there.properties["properties"][word]).lower() != str(wanted[word]).lower():
                raise conflict(f"The property '{word}' of an existing compute cannot be changed.", "UserError")
    body = resources.top(ask, _region(ask, workspace))
    properties = {
        "computeType": "AmlCompute",
        "computeLocation": body["location"],
        "provisioningState": "Updating" if there else "Creating",
        "createdOn": there.properties["createdOn"] if there else ask.stamp(),
        "isAttachedCompute": False,
        "disableLocalAuth": True,
        "description": given.get("description", ""),
        "properties": wanted,
    }
    made = Resource(ask.id, {**body, "properties": properties}, ask.now, there.secret if there else {})
    cloud = nodes.prepared(cloud.put(made), ask, made)
    cloud, operation = begin(cloud, ask, "put", _PUT_S)
    return cloud, accepted(ask, operation, shown(cloud, made), status=200 if there else 201)


def _checked(ask: Ask, workspace: Resource, wanted: dict[str, Any]) -> dict[str, Any]:
    size = str(needed(wanted, "vmSize"))
    region = _region(ask, workspace)
    if catalog.size_in(size, region) is None:
        raise invalid(f"The specified Azure ML Compute VM size {size} is not supported in {region}.", "UserError")
    wanted.setdefault("vmPriority", "Dedicated")
    if wanted["vmPriority"] not in ("Dedicated", _LOW):
        raise invalid(f"vmPriority is {wanted['vmPriority']}, expected Dedicated or {_LOW}.", "UserError")
    scale = {"minNodeCount": 0, "nodeIdleTimeBeforeScaleDown": "PT2M", **(wanted.get("scaleSettings") or {})}
    least, most = scale["minNodeCount"], scale.get("maxNodeCount")
    if not isinstance(most, int) or not isinstance(least, int) or not 0 <= least <= most <= _MOST:
        raise invalid(f"scaleSettings has {least} to {most} nodes, expected 0 to {_MOST}.", "UserError")
    if seconds(str(scale["nodeIdleTimeBeforeScaleDown"])) is None:
        raise invalid("nodeIdleTimeBeforeScaleDown is not an ISO 8601 duration.", "UserError")
    return {"osType": "Linux", **wanted, "vmSize": size.upper(), "scaleSettings": scale}


def _region(ask: Ask, workspace: Resource) -> str:
    wanted = str(ask.body.get("location") or workspace.region)
    found = catalog.region_named(wanted)
    if found is None:
        raise invalid(f"The provided location '{wanted}' is not available.", "LocationNotAvailableForResourceType")
    return found.name


def seconds(text: str) -> float | None:
    """Of an ISO 8601 duration; None where it is none."""
    found = _DURATION.match(text)
    if not found or not any(found.groups()):
        return None
    days, hours, minutes, rest = (float(one or 0) for one in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + rest


@route("PATCH", COMPUTES)
def patch(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    there = resources.require(cloud, ask)
    inner = (ask.body.get("properties") or {}).get("properties") or {}
    scale = {**there.properties["properties"]["scaleSettings"], **(inner.get("scaleSettings") or {})}
    there = there.having(properties={**there.properties["properties"], "scaleSettings": scale})
    return cloud.put(there), ArmAnswer(200, shown(cloud, there))


@route("GET", COMPUTES)
def get(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    workspace_of(cloud, ask)
    return cloud, ArmAnswer(200, shown(cloud, resources.require(cloud, ask)))


@route("GET", WORKSPACES, "computes")
def list_all(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    workspace = resources.require(cloud, ask)
    return cloud, page(ask, [shown(cloud, one) for one in cloud.below(workspace.id) if one.kind == COMPUTES])


@route("POST", COMPUTES, "listNodes")
def list_nodes(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    compute = resources.require(cloud, ask)
    return cloud, ArmAnswer(200, {"nodes": nodes.listed(cloud, compute)})


@route("DELETE", COMPUTES)
def delete(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    """Its nodes end at once, and the jobs on them fail."""
    there = cloud.find(ask.id)
    if there is None:
        return cloud, ArmAnswer(204)
    cloud = cloud.put(there.having(provisioningState="Deleting"))
    cloud, operation = begin(cloud, ask, "ml.compute.delete", _DELETE_S)
    return nodes.all_released(cloud, there, operation, ask.now), accepted(ask, operation)


def shown(cloud: CloudState, compute: Resource) -> dict[str, Any]:
    """With the state of its nodes, as it is now."""
    counted: Mapping[str, int] = nodes.counted(cloud, compute)
    inner = {
        **compute.properties["properties"],
        "currentNodeCount": sum(counted.values()),
        "targetNodeCount": int(compute.secret.get("target", 0)),
        "nodeStateCounts": dict(counted),
        "allocationState": "Steady" if sum(counted.values()) == compute.secret.get("target", 0) else "Resizing",
        "errors": list(compute.secret.get("errors", ())),
    }
    return replace(compute, body=compute.body).having(properties=inner).answer()
