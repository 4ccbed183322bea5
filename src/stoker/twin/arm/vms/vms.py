"""Virtual machines: create, change, read and delete."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import count
from typing import Any

from stoker.twin.arm import resources
from stoker.twin.arm.ask import ArmAnswer, Ask, accepted, begin, objects, page, route
from stoker.twin.arm.vms import disks as attached
from stoker.twin.arm.vms import extensions, parts, rules
from stoker.twin.arm.vms.actions import admit, allocation_error, status_only, with_view
from stoker.twin.market import catalog, prices
from stoker.twin.refusal import conflict, invalid, unreadable
from stoker.twin.state import CloudState, Instance, MachinePower, Operation, Resource, ScheduledEvent
from stoker.twin.time import power
from stoker.twin.time.power import VMS

_CREATE_S, _UPDATE_S, _DELETE_S = 0.5, 0.2, 0.5
_SHORTEST_NOTICE_S = 300.0  # the least that a VM can request before it is deleted


@route("PUT", VMS)
def put(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    resources.require_group(cloud, ask)
    resources.refuse_deleting(cloud, ask)
    there = cloud.find(ask.id)
    if there is None and (ask.body.get("properties") or {}).get("virtualMachineScaleSet"):
        raise invalid("The twin attaches no VM to a scale set; a set has the instances that its capacity says.")
    if there is None or there.properties["provisioningState"] == "Failed":
        return _create(cloud, ask)
    return _update(cloud, ask, there, ask.body.get("properties", {}))


@route("PATCH", VMS)
def patch(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    return _update(cloud, ask, resources.require(cloud, ask), ask.body.get("properties", {}))


@route("GET", VMS)
def get(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    vm = resources.require(cloud, ask)
    return cloud, ArmAnswer(200, with_view(cloud, ask, vm) if _wants_view(ask) else vm.answer())


@route("GET", "Microsoft.Compute", "virtualMachines")
def list_all(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    if ask.target.group:
        resources.require_group(cloud, ask)
    found = cloud.visible(VMS, ask.target.group)
    if text := ask.query.get("$filter"):
        named = _OF_SET.match(text)
        if not named:
            raise invalid("The filter of VMs can only be 'virtualMachineScaleSet/id' eq '<id of a scale set>'.")
        found = [vm for vm in found if power.set_of(vm).lower() == named[1].lower()]
    elif _wants_view(ask):
        raise invalid("$expand=instanceView can only be specified if a valid $filter option is specified.")
    if _wants_view(ask):
        return cloud, page(ask, [with_view(cloud, ask, vm) for vm in found])
    only = ask.query.get("statusOnly", "").lower() == "true"
    return cloud, page(ask, [status_only(cloud, ask, vm) if only else vm.answer() for vm in found])


_OF_SET = re.compile(r"\s*'?virtualMachineScaleSet/id'?\s+eq\s+'([^']+)'\s*$", re.IGNORECASE)


@route("DELETE", VMS)
def delete(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    vm = cloud.find(ask.id)
    if vm is None:
        return cloud, ArmAnswer(204)
    under_way = [one for one in cloud.operations.values() if one.open and (one.verb, one.about) == ("vm.delete", vm.id)]
    if under_way:
        return cloud, accepted(ask, under_way[0])
    cloud = cloud.put(vm.having(provisioningState="Deleting"))
    cloud, operation = begin(cloud, ask, "vm.delete", _DELETE_S, vm.id)
    instance = cloud.instance(vm.id)
    if instance and instance.power is MachinePower.RUNNING and (notice_s := _asked_notice_s(vm)):
        cloud = cloud.put_operation(replace(operation, due_at=ask.now + notice_s + _DELETE_S))
        notice = ScheduledEvent(ask.uuid("terminate"), vm.id, "Terminate", ask.now + notice_s)
        return power.announce(cloud, notice, ask.wall), accepted(ask, operation)
    return power.destroy(cloud, vm.id, operation, ask.now), accepted(ask, operation)


@route("POST", VMS, "attachDetachDataDisks")
def attach_detach(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    vm = resources.require(cloud, ask)
    disks = list(vm.properties["storageProfile"].get("dataDisks") or ())
    going = {str(one.get("diskId", "")).lower() for one in objects(ask.body, "dataDisksToDetach")}
    kept = [one for one in disks if str(one["managedDisk"]["id"]).lower() not in going]
    free = (number for number in count() if number not in {one["lun"] for one in kept})
    for one in objects(ask.body, "dataDisksToAttach"):
        lun = one["lun"] if one.get("lun") is not None else next(free)
        if not isinstance(lun, int):
            raise unreadable("'lun' must be a whole number. Path 'dataDisksToAttach.lun'.")
        kept.append({"lun": lun, "createOption": "Attach", "managedDisk": {"id": one.get("diskId")}})
    cloud, disks = attached.changed(cloud, ask.at(vm.id, {}), vm, kept)
    storage = {**vm.properties["storageProfile"], "dataDisks": disks}
    cloud, operation = begin(cloud.put(vm.having(storageProfile=storage)), ask, "run", _UPDATE_S, vm.id)
    operation = replace(operation, result={"dataDisks": disks})
    return cloud.put_operation(operation), accepted(ask, operation)


def _wants_view(ask: Ask) -> bool:
    return "instanceview" in ask.query.get("$expand", "").lower()


def _asked_notice_s(vm: Resource) -> float:
    """A VM can request a `Terminate` event before it is deleted."""
    asked = vm.properties.get("scheduledEventsProfile", {}).get("terminateNotificationProfile", {})
    if not asked.get("enable"):
        return 0.0
    minutes = str(asked.get("notBeforeTimeout", "PT5M")).removeprefix("PT").removesuffix("M")
    return float(minutes) * 60 if minutes.isdecimal() else _SHORTEST_NOTICE_S


def _create(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    """Refused at once where a rule forbids it; a lack of capacity fails the operation, and leaves a `Failed` VM."""
    size = admit(cloud, ask)
    cloud, error = allocation_error(cloud, ask, size, resources.region_of(cloud, ask))
    cloud, operation = make(cloud, ask, error)
    return cloud, accepted(ask, operation, cloud.resources[ask.id.lower()].answer(), status=201)


def make(cloud: CloudState, ask: Ask, error: Mapping[str, Any]) -> tuple[CloudState, Operation]:
    """Everything of an admitted VM. `error`: why no machine is available for it."""
    region = resources.region_of(cloud, ask)
    given = {"priority": "Regular", **ask.body.get("properties", {})}
    if given["priority"] == "Spot":
        given = {"evictionPolicy": "Deallocate", "billingProfile": {"maxPrice": -1}, **given}
    cloud, given = parts.interfaces(cloud, ask, given)
    cloud, given = attached.made(cloud, ask, region, given)
    visible, secret = parts.split(given)
    identity = parts.identity(cloud, ask, ask.body.get("identity"))
    body = {**resources.top(ask, region), **({"identity": identity} if identity else {})}
    visible |= {"vmId": ask.uuid("vm"), "provisioningState": "Creating", "timeCreated": ask.stamp()}
    vm = Resource(ask.id, {**body, "properties": visible}, ask.now, secret)
    cloud, operation = begin(cloud.put(vm), ask, "vm.create", _CREATE_S, error=error)
    if not error:
        name = f"{vm.name}-{visible['vmId'][:8]}"
        instance = Instance(name, vm.id, parts.address(cloud, vm), MachinePower.STARTING, ask.now, prices.is_spot(vm))
        cloud = cloud.put_instance(instance)
        cloud = power.begin(cloud, operation, power.chore(cloud, "create", instance, ask.now))
        if extensions.in_image(vm):
            text = extensions.installing(vm)
            cloud = cloud.order(power.chore(cloud, "run", instance, ask.now, script=text, form="extension"))
    return cloud, operation


_FIXED = (  # cannot be changed after creation
    ("osProfile", "customData"),
    ("osProfile", "adminUsername"),
    ("osProfile", "computerName"),
    ("storageProfile", "imageReference"),
    ("priority",),
)


def _update(cloud: CloudState, ask: Ask, vm: Resource, given: Mapping[str, Any]) -> tuple[CloudState, ArmAnswer]:
    """The same PUT again changes nothing and starts nothing."""
    parts.refuse_deleting(vm, "Create or Update VM")
    everything = merged(vm.properties, vm.secret)
    for path in _FIXED:
        asked, there = _at(given, path), _at(everything, path)
        if asked is not None and there is not None and not _same(asked, there):
            raise conflict(f"Changing property '{'.'.join(path)}' is not allowed.", "PropertyChangeNotAllowed")
    _check_resize(cloud, vm, given)
    parts.check_move(cloud, vm, given)
    if given.get("billingProfile"):
        rules.check_max_price(given)
    visible, secret = parts.split(merged(everything, given))
    wanted = (given.get("storageProfile") or {}).get("dataDisks")
    if wanted is not None:
        cloud, disks = attached.changed(cloud, ask, vm, wanted)
        visible["storageProfile"] = {**visible["storageProfile"], "dataDisks": disks}
    if "networkProfile" in given:
        visible["networkProfile"] = vm.properties["networkProfile"]
    creating = [one for one in cloud.operations.values() if one.open and (one.verb, one.about) == ("vm.create", vm.id)]
    body = {**vm.body, "properties": {**visible, "provisioningState": "Creating" if creating else "Updating"}}
    if "tags" in ask.body:
        body["tags"] = dict(ask.body["tags"] or {})
    if identity := parts.identity(cloud, ask, ask.body.get("identity"), vm.body.get("identity")):
        body["identity"] = identity
    changed = replace(vm, body=body, secret=secret)
    if creating:  # it is still being created, so there is nothing more to do
        return cloud.put(changed), accepted(ask, creating[0], changed.answer(), status=200)
    cloud, operation = begin(cloud.put(changed), ask, "put", _UPDATE_S, vm.id)
    return cloud, accepted(ask, operation, changed.answer(), status=200)


def _check_resize(cloud: CloudState, vm: Resource, given: Mapping[str, Any]) -> None:
    wanted = str(given.get("hardwareProfile", {}).get("vmSize", "") or prices.size_of(vm).name)
    if wanted.lower() == prices.size_of(vm).name.lower():
        return
    instance = cloud.instance(vm.id)
    if instance is None or instance.power is not MachinePower.DEALLOCATED:
        raise conflict(
            f"Unable to resize the VM '{vm.name}' to '{wanted}' while it is allocated.", "OperationNotAllowed"
        )
    if wanted.lower() not in catalog.SIZES:
        raise invalid(f"The value '{wanted}' provided for the VM size is not valid.")


def merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    both = dict(first)
    for key, value in second.items():
        inside = isinstance(value, Mapping) and isinstance(both.get(key), Mapping)
        both[key] = merged(both[key], value) if inside else value
    return both


def _at(value: Any, path: tuple[str, ...]) -> Any:
    for word in path:
        value = value.get(word) if isinstance(value, Mapping) else None
    return value


def _same(asked: Any, there: Any) -> bool:
    """A field that the client omitted is not a change."""
    if isinstance(asked, Mapping) and isinstance(there, Mapping):
        return all(key not in there or _same(value, there[key]) for key, value in asked.items())
    return json.dumps(asked) == json.dumps(there) or str(asked).lower() == str(there).lower()
