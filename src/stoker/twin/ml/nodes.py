"""Compute clusters (AmlCompute of 0 to N nodes, dedicated or of low priority) and their nodes: VMs in a subscription
that is not the user's, with the machines of any other VM."""

from __future__ import annotations

import base64
import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from stoker.twin import ids
from stoker.twin.arm import network, resources
from stoker.twin.arm.ask import ArmAnswer, Ask, accepted, begin, needed, page, route
from stoker.twin.arm.vms import vms
from stoker.twin.arm.vms.actions import admit, allocation_error
from stoker.twin.market import catalog
from stoker.twin.ml import COMPUTES, WORKSPACES
from stoker.twin.ml.workspaces import workspace_of
from stoker.twin.refusal import Refused, conflict, invalid
from stoker.twin.state import Chore, CloudState, Instance, MachinePower, Operation, Resource, name_uuid
from stoker.twin.time import power
from stoker.twin.time.power import VMS

FOLDER = "/mnt/azureml"  # of a node, for the files of its jobs
_VERSION = "2024-03-01"
_NETWORK_VERSION = "2024-01-01"
_IMAGE = {
    "publisher": "Canonical",
    "offer": "0001-com-ubuntu-server-jammy",
    "sku": "22_04-lts-gen2",
    "version": "latest",
}
_PROGRAM = Path(__file__).with_name("node.py")
_LONGEST_S = 30 * 24 * 3600.0


def group_of(cloud: CloudState, compute: Resource) -> str:
    """The id of the group with its nodes. Users see neither it nor what is in it."""
    word = name_uuid("nodes", compute.id.lower())[:8]
    return ids.group_id(name_uuid("ml subscription", cloud.subscription), f"azureml-{compute.name}-{word}".lower())


def _network(cloud: CloudState, compute: Resource) -> str:
    return f"{group_of(cloud, compute)}/providers/Microsoft.Network/virtualNetworks/nodes"


def prepared(cloud: CloudState, ask: Ask, compute: Resource) -> CloudState:
    """Its group and its network are there. Repeating it changes nothing."""
    if cloud.find(group_of(cloud, compute)):
        return cloud
    place = {"location": compute.region}
    cloud, _ = resources.put(cloud, ask.at(group_of(cloud, compute), place))
    subnet = {"name": "default", "properties": {"addressPrefix": "10.8.0.0/16"}}
    space = {"addressSpace": {"addressPrefixes": ["10.8.0.0/16"]}, "subnets": [subnet]}
    made = replace(
        ask.at(_network(cloud, compute), {**place, "properties": space}), query={"api-version": _NETWORK_VERSION}
    )
    cloud, _ = network.put_network(cloud, made)
    return cloud


def of(cloud: CloudState, compute: Resource) -> list[Resource]:
    """Its nodes, the oldest first, without those that are being released."""
    inside = cloud.below(group_of(cloud, compute))
    return [one for one in inside if one.kind == VMS and one.properties["provisioningState"] != "Deleting"]


def running(cloud: CloudState, vm: str) -> Instance | None:
    """The machine of a node that jobs can use; None while there is none, or no longer."""
    found, instance = cloud.find(vm), cloud.instance(vm)
    if found is None or instance is None or found.properties["provisioningState"] != "Succeeded":
        return None
    leaving = any(one.machine == instance.name and one.verb == "destroy" for one in cloud.chores.values())
    return instance if instance.power is MachinePower.RUNNING and not leaving else None


def added(cloud: CloudState, compute: Resource, ask: Ask) -> tuple[CloudState, str]:
    """With one node more, or why there is none."""
    word = name_uuid("node", compute.id.lower(), ask.number, len(cloud.operations))[:8]
    group = group_of(cloud, compute)
    one = ask.at(ids.resource_id(ids.read(group).subscription, ids.read(group).group, VMS, f"node-{word}"), {})
    one = replace(one, body=_body(cloud, compute, word), query={"api-version": _VERSION})
    try:
        size = admit(cloud, one)
        cloud, error = allocation_error(cloud, one, size, compute.region)
        if error:
            return cloud, str(error["message"])
        cloud, _ = vms.make(cloud, one, {})
    except Refused as refusal:
        return cloud, refusal.message
    return cloud, ""


def _body(cloud: CloudState, compute: Resource, word: str) -> dict[str, Any]:
    wanted = compute.properties["properties"]
    low = wanted["vmPriority"] == "LowPriority"
    subnet = {"subnet": {"id": f"{_network(cloud, compute)}/subnets/default"}}
    card = {
        "name": f"card-{word}",
        "properties": {"deleteOption": "Delete", "ipConfigurations": [{"name": "main", "properties": subnet}]},
    }
    spot = {"priority": "Spot", "evictionPolicy": "Delete", "billingProfile": {"maxPrice": -1}} if low else {}
    return {
        "location": compute.region,
        "tags": {"azureml-compute": compute.name},
        "properties": {
            **spot,
            "hardwareProfile": {"vmSize": wanted["vmSize"]},
            "storageProfile": {
                "imageReference": _IMAGE,
                "osDisk": {"createOption": "FromImage", "deleteOption": "Delete"},
            },
            "osProfile": {
                "adminUsername": "azureml",
                "computerName": f"node-{word}",
                "adminPassword": f"Aa1!{name_uuid('password', word, cloud.key)}",
            },
            "networkProfile": {"networkApiVersion": _NETWORK_VERSION, "networkInterfaceConfigurations": [card]},
        },
    }


def released(cloud: CloudState, vm: Resource, now: float) -> CloudState:
    operation = Operation(name_uuid("release", vm.id, now), "vm.delete", vm.id, now, now)
    return power.destroy(cloud.put(vm.having(provisioningState="Deleting")), vm.id, operation, now)


def all_released(cloud: CloudState, compute: Resource, operation: Operation, now: float) -> CloudState:
    """When the operation ends, the compute is gone with everything that is its own."""
    for vm in of(cloud, compute):
        cloud = cloud.put(vm.having(provisioningState="Deleting"))
        cloud = power.destroy(cloud, vm.id, cloud.operations[operation.id], now)
    return cloud


def compute_deleted(cloud: CloudState, operation: Operation, now: float) -> CloudState:
    compute = cloud.find(operation.about)
    if compute is None or compute.kind != COMPUTES:
        return cloud
    group = group_of(cloud, compute)
    inside = [one.id for one in cloud.below(group)]
    for id in inside:
        cloud = power.drop_notices(cloud, id).drop_instance(id)
    return power.remove(cloud, now, compute.id, group, *inside)


def ordered(cloud: CloudState, instance: Instance, script: str, about: str, now: float) -> tuple[CloudState, str]:
    """A script runs on a node: the operation that ends with it. It fails where the script does."""
    id = name_uuid("ml run", instance.name, about, now, len(cloud.operations))
    chore: Chore = power.chore(cloud, "run", instance, now, script=script, form="extension", longest_s=_LONGEST_S)
    cloud = power.begin(cloud, Operation(id, "run", about, now, now), replace(chore, id=f"{chore.id}-{id[:4]}"))
    return cloud, id


def job_script(name: str, order: dict[str, Any]) -> str:
    """Runs a job's part on a node, with `node.py`. Repeated, as after a restart of the twin, it waits for the first."""
    program = base64.b64encode(_PROGRAM.read_bytes()).decode()
    text = base64.b64encode(json.dumps(order).encode()).decode()
    return f"""#!/bin/sh
place={FOLDER}/{name}
mkdir -p $place
[ -f $place/node.py ] || printf %s {program} | base64 -d > $place/node.py
printf %s {text} | base64 -d > $place/order-{order["try"]}.json
exec python3 $place/node.py $place {order["try"]}
"""


def stop_script(name: str, attempt: int) -> str:
    return f"#!/bin/sh\nmkdir -p {FOLDER}/{name}\ntouch {FOLDER}/{name}/stop-{attempt}\n"


def counted(cloud: CloudState, compute: Resource) -> Counter[str]:
    """How many nodes are in which state, in Azure's words for them."""
    return Counter({"idleNodeCount": 0, "runningNodeCount": 0, "preparingNodeCount": 0}) + Counter(
        _state(cloud, compute, one) for one in of(cloud, compute)
    )


def _state(cloud: CloudState, compute: Resource, vm: Resource) -> str:
    if running(cloud, vm.id) is None:
        return "preparingNodeCount"
    return "runningNodeCount" if vm.id.lower() in compute.secret.get("busy", {}) else "idleNodeCount"


def listed(cloud: CloudState, compute: Resource) -> list[dict[str, Any]]:
    busy = compute.secret.get("busy", {})
    return [
        {
            "nodeId": vm.name,
            "privateIpAddress": instance.address if (instance := cloud.instance(vm.id)) else None,
            "nodeState": _state(cloud, compute, vm).removesuffix("NodeCount"),
            "runId": busy.get(vm.id.lower()),
        }
        for vm in of(cloud, compute)
    ]


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
    cloud = prepared(cloud.put(made), ask, made)
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
    return cloud, ArmAnswer(200, {"nodes": listed(cloud, compute)})


@route("DELETE", COMPUTES)
def delete(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    """Its nodes end at once, and the jobs on them fail."""
    there = cloud.find(ask.id)
    if there is None:
        return cloud, ArmAnswer(204)
    cloud = cloud.put(there.having(provisioningState="Deleting"))
    cloud, operation = begin(cloud, ask, "ml.compute.delete", _DELETE_S)
    return all_released(cloud, there, operation, ask.now), accepted(ask, operation)


def shown(cloud: CloudState, compute: Resource) -> dict[str, Any]:
    """With the state of its nodes, as it is now."""
    counts = counted(cloud, compute)
    inner = {
        **compute.properties["properties"],
        "currentNodeCount": sum(counts.values()),
        "targetNodeCount": int(compute.secret.get("target", 0)),
        "nodeStateCounts": dict(counts),
        "allocationState": "Steady" if sum(counts.values()) == compute.secret.get("target", 0) else "Resizing",
        "errors": list(compute.secret.get("errors", ())),
    }
    return replace(compute, body=compute.body).having(properties=inner).answer()
