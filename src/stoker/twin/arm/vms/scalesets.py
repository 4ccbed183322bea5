"""Scale sets with Flexible orchestration: their instances are ordinary VMs, created and deleted with the set."""

from __future__ import annotations

from dataclasses import replace

from stoker.twin import ids
from stoker.twin.arm import generic, groups
from stoker.twin.arm.requests.ask import ArmAnswer, Ask, accepted, begin, page, route
from stoker.twin.arm.vms import extensions, parts, setrules, vms
from stoker.twin.arm.vms.admission import admit, allocation_error
from stoker.twin.refusal import conflict
from stoker.twin.state import CloudState, Operation, Resource, name_uuid
from stoker.twin.time import power
from stoker.twin.time.power import SETS, VMS, members

_PUT_S, _DELETE_S = 0.2, 0.5


@route("PUT", SETS)
def put(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    groups.require(cloud, ask)
    groups.refuse_deleting(cloud, ask)
    there = cloud.find(ask.id)
    if there is None or there.properties["provisioningState"] == "Failed":
        return _create(cloud, ask)
    return _change(cloud, ask, there)


@route("PATCH", SETS)
def patch(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    return _change(cloud, ask, generic.require(cloud, ask))


@route("GET", SETS, "virtualMachines")
def instances(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    """For `az vmss list-instances`."""
    found = members(cloud, generic.require(cloud, ask))
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


generic.readable(SETS)


def _create(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    """Refused at once where a rule forbids it; a lack of capacity fails the operation, and leaves a `Failed` set."""
    wanted = setrules.checked(ask)
    region = groups.region_of(cloud, ask)
    visible, secret = parts.split(ask.body["properties"]["virtualMachineProfile"])
    identity = parts.identity(cloud, ask, ask.body.get("identity"))
    properties = {
        **ask.body["properties"],
        "virtualMachineProfile": visible,
        "uniqueId": ask.uuid("set"),
        "timeCreated": ask.stamp(),
        "provisioningState": "Creating",
    }
    body = {**groups.top(ask, region), **({"identity": identity} if identity else {}), "properties": properties}
    set_ = Resource(ask.id, body, ask.now, secret)
    cloud, operation = begin(cloud.put(set_), ask, "put", _PUT_S)
    cloud, operation = _grown(cloud, ask, set_, wanted, operation)
    return cloud, accepted(ask, operation, set_.answer(), status=201)


def _change(cloud: CloudState, ask: Ask, set_: Resource) -> tuple[CloudState, ArmAnswer]:
    """Capacity, tags, and the profile of new instances; existing ones are unchanged."""
    if set_.properties["provisioningState"] == "Deleting":
        raise conflict(f"The scale set '{set_.name}' is being deleted.", "OperationNotAllowed")
    given = ask.body.get("properties") or {}
    setrules.check_change(set_, given)
    profile = vms.merged(setrules.profile(set_), given.get("virtualMachineProfile") or {})
    visible, secret = parts.split(profile)
    sku = {**set_.body["sku"], **(ask.body.get("sku") or {})}
    wanted = setrules.capacity(sku)
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
            return ask.at(id, setrules.vm_body(set_, word))
    raise AssertionError("a thousand names are taken")
