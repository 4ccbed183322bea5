"""Rules for the body of a scale set, and the VM that its profile describes.

Codes and messages are Azure's where known; their sources are in the table of docs/concepts/twin.md.

Scale sets with Flexible orchestration: their instances are ordinary VMs, created and deleted with the set.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from stoker.twin import ids
from stoker.twin.arm import resources
from stoker.twin.arm.ask import ArmAnswer, Ask, accepted, begin, needed, page, route
from stoker.twin.arm.vms import extensions, parts, vms
from stoker.twin.arm.vms.actions import admit, allocation_error
from stoker.twin.arm.vms.rules import check_described, check_place
from stoker.twin.refusal import conflict, invalid
from stoker.twin.state import CloudState, Operation, Resource, name_uuid
from stoker.twin.time import power
from stoker.twin.time.power import SETS, VMS, members

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,62}[A-Za-z0-9_])?$")
_DURATION = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?)?$")
_MOST = 1000
_NETWORK_SINCE = "2020-11-01"


def checked(ask: Ask) -> int:
    """The requested capacity, if Azure would accept the body."""
    if not _NAME.match(ask.target.name):
        raise invalid(f"The value '{ask.target.name}' of parameter vmScaleSetName is not valid: 1 to 64 characters.")
    given = needed(ask.body, "properties")
    mode = str(given.get("orchestrationMode", "Uniform"))
    if mode != "Flexible":
        raise invalid(f"The twin has no scale sets with {mode} orchestration; it has those with 'Flexible'.")
    check_place(given, {"proximityPlacementGroup": "scale sets in proximity placement groups"})
    profile = needed(given, "virtualMachineProfile")
    needed(ask.body, "sku", "name")
    needed(given, "platformFaultDomainCount")
    _check_identity(ask.body.get("identity") or {})
    _check_network(needed(profile, "networkProfile"))
    needed(profile, "osProfile", "computerNamePrefix")
    for one in (profile.get("extensionProfile") or {}).get("extensions") or ():
        needed(one, "name")
    _check_restore(given.get("spotRestorePolicy") or {}, profile)
    return capacity(ask.body["sku"])


def check_change(set_: Resource, given: Mapping[str, Any]) -> None:
    mode = given.get("orchestrationMode", set_.properties["orchestrationMode"])
    if mode != set_.properties["orchestrationMode"]:
        raise conflict("Changing property 'orchestrationMode' is not allowed.", "PropertyChangeNotAllowed")
    profile = given.get("virtualMachineProfile") or {}
    before = set_.properties["virtualMachineProfile"]
    for word in ("priority", "evictionPolicy"):
        if profile.get(word, before.get(word)) != before.get(word):
            raise conflict(f"Changing property '{word}' is not allowed.", "PropertyChangeNotAllowed")
    _check_restore(given.get("spotRestorePolicy") or {}, {**before, **profile})


def capacity(sku: Mapping[str, Any]) -> int:
    wanted = sku.get("capacity", 0)
    if not isinstance(wanted, int) or isinstance(wanted, bool) or not 0 <= wanted <= _MOST:
        raise invalid(f"The value '{wanted}' of parameter sku.capacity is not valid: 0 to {_MOST} are.")
    return wanted


def _check_identity(identity: Mapping[str, Any]) -> None:
    if "SystemAssigned" in str(identity.get("type", "")):
        raise invalid(
            "System assigned identity is not supported for Virtual Machine Scale Sets with Flexible Orchestration "
            "Mode. Use a user assigned identity.",
            "BadRequest",
        )


def _check_network(profile: Mapping[str, Any]) -> None:
    version = str(needed(profile, "networkApiVersion"))
    if version < _NETWORK_SINCE:
        raise invalid(f"The value '{version}' of parameter networkApiVersion is not valid: {_NETWORK_SINCE} or later.")
    if not profile.get("networkInterfaceConfigurations"):
        raise invalid("Virtual machine must have at least one network interface.")
    for card in profile["networkInterfaceConfigurations"]:
        check_described(card)


def _check_restore(policy: Mapping[str, Any], profile: Mapping[str, Any]) -> None:
    if not policy.get("enabled"):
        return
    if str(profile.get("priority", "")).lower() != "spot":
        raise invalid("Spot restore policy can be set only on Azure Spot Virtual Machine Scale Sets.")
    if str(profile.get("evictionPolicy", "")).lower() != "delete":
        raise invalid("The twin restores instances whose evictionPolicy is 'Delete', and none that are deallocated.")
    if restore_s(policy) <= 0:
        raise invalid(f"The value '{policy.get('restoreTimeout')}' of parameter restoreTimeout is not a duration.")


def restore_s(policy: Mapping[str, Any]) -> float:
    """How long Azure tries to restore an evicted instance; 0 where it is not an ISO 8601 duration."""
    found = _DURATION.match(str(policy.get("restoreTimeout", "PT1H")))
    if not found:
        return 0.0
    days, hours, minutes, seconds = (int(one or 0) for one in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60.0 + seconds


def profile_of(set_: Resource) -> dict[str, Any]:
    """Including its secrets."""
    return vms.merged(set_.properties["virtualMachineProfile"], set_.secret)


def vm_body(set_: Resource, word: str) -> dict[str, Any]:
    """The VM of an instance. `word` is its own part of all names."""
    given = profile_of(set_)
    system = dict(given.pop("osProfile"))
    system["computerName"] = f"{system.pop('computerNamePrefix')}{word[:6]}"
    network = given.pop("networkProfile")
    given.pop("extensionProfile", None)
    cards = [_named(one, word) for one in network["networkInterfaceConfigurations"]]
    kept = {name: set_.body[name] for name in ("tags", "zones", "identity") if name in set_.body}
    return {
        "location": set_.region,
        **kept,
        "properties": {
            **given,
            "hardwareProfile": {"vmSize": set_.body["sku"]["name"]},
            "osProfile": system,
            "networkProfile": {**network, "networkInterfaceConfigurations": cards},
            "virtualMachineScaleSet": {"id": set_.id},
        },
    }


def _named(card: Mapping[str, Any], word: str) -> dict[str, Any]:
    properties = dict(card.get("properties") or {})
    properties["ipConfigurations"] = [_address_named(one, word) for one in properties.get("ipConfigurations") or ()]
    return {"name": f"{card['name']}-{word}", "properties": properties}


def _address_named(one: Mapping[str, Any], word: str) -> dict[str, Any]:
    properties = dict(one.get("properties") or {})
    if public := properties.get("publicIPAddressConfiguration"):
        properties["publicIPAddressConfiguration"] = {**public, "name": f"{public['name']}-{word}"}
    return {**one, "properties": properties}


_PUT_S, _DELETE_S = 0.2, 0.5


@route("PUT", SETS)
def put(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    resources.require_group(cloud, ask)
    resources.refuse_deleting(cloud, ask)
    there = cloud.find(ask.id)
    if there is None or there.properties["provisioningState"] == "Failed":
        return _create(cloud, ask)
    return _change(cloud, ask, there)


@route("PATCH", SETS)
def patch(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    return _change(cloud, ask, resources.require(cloud, ask))


@route("GET", SETS, "virtualMachines")
def instances(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    """For `az vmss list-instances`."""
    found = members(cloud, resources.require(cloud, ask))
    return cloud, page(ask, [{**vm.answer(), "instanceId": vm.name} for vm in found])


@route("DELETE", SETS)
def delete(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    """Instances are powered off at once, and deleted with the set when the operation ends."""
    set_ = cloud.find(ask.id)
    if set_ is None:
        return cloud, ArmAnswer(204)
    for one in cloud.operations.values():
        if one.open and (one.verb, one.about) == ("set.delete", set_.id):
            return cloud, accepted(ask, one)
    cloud = cloud.put(set_.having(provisioningState="Deleting"))
    cloud, operation = begin(cloud, ask, "set.delete", _DELETE_S, set_.id)
    for vm in members(cloud, set_):
        cloud = cloud.put(vm.having(provisioningState="Deleting"))
        cloud = power.destroy(cloud, vm.id, cloud.operations[operation.id], ask.now)
    return cloud, accepted(ask, operation)


resources.readable(SETS)


def _create(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    """Refused at once where a rule forbids it; a lack of capacity fails the operation, and leaves a `Failed` set."""
    wanted = checked(ask)
    region = resources.region_of(cloud, ask)
    visible, secret = parts.split(ask.body["properties"]["virtualMachineProfile"])
    identity = parts.identity(cloud, ask, ask.body.get("identity"))
    properties = {
        **ask.body["properties"],
        "virtualMachineProfile": visible,
        "uniqueId": ask.uuid("set"),
        "timeCreated": ask.stamp(),
        "provisioningState": "Creating",
    }
    body = {**resources.top(ask, region), **({"identity": identity} if identity else {}), "properties": properties}
    set_ = Resource(ask.id, body, ask.now, secret)
    cloud, operation = begin(cloud.put(set_), ask, "put", _PUT_S)
    cloud, operation = _grown(cloud, ask, set_, wanted, operation)
    return cloud, accepted(ask, operation, set_.answer(), status=201)


def _change(cloud: CloudState, ask: Ask, set_: Resource) -> tuple[CloudState, ArmAnswer]:
    """Capacity, tags, and the profile of new instances; existing ones are unchanged."""
    if set_.properties["provisioningState"] == "Deleting":
        raise conflict(f"The scale set '{set_.name}' is being deleted.", "OperationNotAllowed")
    given = ask.body.get("properties") or {}
    check_change(set_, given)
    profile = vms.merged(profile_of(set_), given.get("virtualMachineProfile") or {})
    visible, secret = parts.split(profile)
    sku = {**set_.body["sku"], **(ask.body.get("sku") or {})}
    wanted = capacity(sku)
    changed = {**set_.properties, **given, "virtualMachineProfile": visible, "provisioningState": "Updating"}
    body = {**set_.body, "sku": sku, "properties": changed}
    if "tags" in ask.body:
        body["tags"] = dict(ask.body["tags"] or {})
    if identity := parts.identity(cloud, ask, ask.body.get("identity")):
        body["identity"] = identity
    after = replace(set_, body=body, secret=secret)
    cloud, operation = begin(cloud.put(after), ask, "put", _PUT_S, set_.id)
    here = members(cloud, after)
    missing = cloud.restores[set_.id.lower()].missing if set_.id.lower() in cloud.restores else 0
    if wanted < len(here) + missing:
        cloud = power.forget_restore(cloud, set_.id)
    for vm in here[wanted:]:
        cloud = cloud.put(vm.having(provisioningState="Deleting"))
        leaving = Operation(ask.uuid(vm.name), "vm.scale_in", vm.id, ask.now, ask.now)
        cloud = power.destroy(cloud, vm.id, leaving, ask.now)
    cloud, operation = _grown(cloud, ask, after, max(wanted - len(here) - missing, 0), operation)
    return cloud, accepted(ask, operation, after.answer(), status=200)


def _grown(
    cloud: CloudState, ask: Ask, set_: Resource, more: int, operation: Operation
) -> tuple[CloudState, Operation]:
    """Adds instances, or fails the operation for lack of capacity."""
    for _ in range(more):
        one = member(cloud, ask, set_)
        size = admit(cloud, one)
        cloud, error = allocation_error(cloud, ask, size, set_.region)
        if error:
            operation = replace(operation, error=error)
            break
        before = set(cloud.operations)
        cloud = make_member(cloud, one, set_)
        operation = replace(operation, after=(*operation.after, *(id for id in cloud.operations if id not in before)))
    return cloud.put_operation(operation), operation


def make_member(cloud: CloudState, one: Ask, set_: Resource) -> CloudState:
    """An admitted instance, with the extensions of the set's profile."""
    cloud, _ = vms.make(cloud, one, {})
    profile = set_.properties["virtualMachineProfile"].get("extensionProfile") or {}
    for given in profile.get("extensions") or ():
        asked = one.at(f"{one.id}/extensions/{given['name']}", {"properties": given.get("properties") or {}})
        cloud, _ = extensions.put(cloud, asked)
    return cloud


def member(cloud: CloudState, ask: Ask, set_: Resource) -> Ask:
    """The request that creates one more instance, under a generated name."""
    for number in range(1000):
        word = name_uuid("instance", set_.id.lower(), ask.number, ask.now, number)[:8]
        id = ids.resource_id(set_.target.subscription, set_.group, VMS, f"{set_.name}_{word}")
        if cloud.find(id) is None:
            return ask.at(id, vm_body(set_, word))
    raise AssertionError("a thousand names are taken")
