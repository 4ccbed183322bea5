"""What happens to a VM and its machine: allocation, power, notices and evictions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from email.utils import format_datetime
from typing import Any

from stoker.twin.market import prices
from stoker.twin.state import (
    Charge,
    Chore,
    CloudState,
    Instance,
    MachinePower,
    Operation,
    Resource,
    ScheduledEvent,
    name_uuid,
)

BILLED = {MachinePower.RUNNING, MachinePower.STOPPING, MachinePower.STOPPED, MachinePower.DEALLOCATING}
VMS = "Microsoft.Compute/virtualMachines"
SETS = "Microsoft.Compute/virtualMachineScaleSets"


def chore(cloud: CloudState, verb: str, instance: Instance, now: float, **details: Any) -> Chore:
    """The next action on a machine; after those that are waiting."""
    id = name_uuid("chore", verb, instance.name, now, cloud.requests, len(cloud.chores))
    return Chore(id, instance.name, verb, instance.vm, details)


def begin(cloud: CloudState, operation: Operation, *chores: Chore) -> CloudState:
    """An operation that ends when these chores are done."""
    names = tuple(one.id for one in chores)
    return cloud.order(*chores).put_operation(replace(operation, chores=(*operation.chores, *names)))


def set_power(cloud: CloudState, vm: str, power: MachinePower, now: float) -> CloudState:
    """The machine is in this state from now on, billed or not."""
    instance = cloud.instance(vm)
    if instance is None:
        return cloud
    evict_at = instance.evict_at
    if power is MachinePower.RUNNING:
        evict_at = now + cloud.weather.next_eviction_s(instance.name, now) if instance.spot else None
        instance = replace(instance, boots=instance.boots + 1)
    cloud = cloud.put_instance(replace(instance, power=power, since=now, evict_at=_finite(evict_at)))
    return _metered(cloud, vm, power, now)


def _finite(moment: float | None) -> float | None:
    return None if moment is None or moment == float("inf") else moment


def _metered(cloud: CloudState, vm: str, power: MachinePower, now: float) -> CloudState:
    resource = cloud.find(vm)
    if resource is None or power not in BILLED:
        return prices.end(cloud, vm, now)
    kind = "spot" if prices.is_spot(resource) else "on-demand"
    return prices.begin(cloud, Charge(resource.id, kind, prices.size_of(resource).name, resource.region, now))


def halt(cloud: CloudState, vm: str, operation: Operation, now: float) -> CloudState:
    """The cloud powers the machine off, and stops billing it once that is done."""
    instance = cloud.instance(vm)
    if instance is None:
        return cloud.put_operation(operation)
    cloud = begin(cloud, operation, chore(cloud, "power_off", instance, now))
    return set_power(drop_notices(cloud, vm), vm, MachinePower.DEALLOCATING, now)


def destroy(cloud: CloudState, vm: str, operation: Operation, now: float) -> CloudState:
    """The machine is destroyed now; the VM is deleted when the operation ends."""
    instance = cloud.instance(vm)
    if instance is None:
        return cloud.put_operation(operation)
    return begin(drop_notices(cloud, vm), operation, chore(cloud, "destroy", instance, now))


def set_of(vm: Resource) -> str:
    """The id of the scale set that it is an instance of; empty: none."""
    return str((vm.properties.get("virtualMachineScaleSet") or {}).get("id", ""))


def members(cloud: CloudState, set_: Resource) -> list[Resource]:
    return [vm for vm in cloud.all(VMS, set_.group) if set_of(vm).lower() == set_.id.lower()]


def forget_restore(cloud: CloudState, set_: str) -> CloudState:
    return replace(cloud, restores={key: one for key, one in cloud.restores.items() if key != set_.lower()})


def shrunk(cloud: CloudState, set_: str, fewer: int = 1) -> CloudState:
    """The set has so many instances fewer."""
    found = cloud.find(set_)
    if found is None:
        return cloud
    sku = dict(found.body["sku"])
    sku["capacity"] = max(int(sku.get("capacity", 0)) - fewer, 0)
    return cloud.put(replace(found, body={**found.body, "sku": sku}))


def drop_notices(cloud: CloudState, vm: str) -> CloudState:
    return cloud.drop_notices([one for one in cloud.notices.values() if one.vm.lower() == vm.lower()])


def remove_vm(cloud: CloudState, vm: Resource, now: float) -> CloudState:
    """The VM is deleted, with what its options say. The rest stays, and is detached."""
    cloud = drop_notices(cloud, vm.id).drop_instance(vm.id)
    cloud = remove(cloud, now, vm.id, *(one.id for one in cloud.below(vm.id)))
    storage, network = vm.properties.get("storageProfile", {}), vm.properties.get("networkProfile", {})
    for disk in (storage.get("osDisk", {}), *storage.get("dataDisks", ())):
        cloud = _release_disk(cloud, disk, now)
    for nic in network.get("networkInterfaces", ()):
        cloud = _release_nic(cloud, nic, now)
    return cloud


def _release_disk(cloud: CloudState, attached: Any, now: float) -> CloudState:
    disk = cloud.find(str(attached.get("managedDisk", {}).get("id", "")))
    if disk is None:
        return cloud
    if str(attached.get("deleteOption", "")).lower() == "delete":
        return remove(cloud, now, disk.id)
    body = {key: value for key, value in disk.body.items() if key != "managedBy"}
    return cloud.put(replace(disk, body=body).having(diskState="Unattached"))


def _release_nic(cloud: CloudState, attached: Any, now: float) -> CloudState:
    nic = cloud.find(str(attached.get("id", "")))
    if nic is None:
        return cloud
    if str(attached.get("properties", {}).get("deleteOption", "")).lower() == "delete":
        return remove_nic(cloud, nic, now)
    properties = {key: value for key, value in nic.properties.items() if key != "virtualMachine"}
    return cloud.put(replace(nic, body={**nic.body, "properties": properties}))


def remove_nic(cloud: CloudState, nic: Resource, now: float) -> CloudState:
    """Its public addresses are detached, or deleted with it by their options."""
    for configuration in nic.properties.get("ipConfigurations", ()):
        public = configuration.get("properties", {}).get("publicIPAddress") or {}
        address = cloud.find(str(public.get("id", "")))
        if address is None:
            continue
        if str(public.get("properties", {}).get("deleteOption", "")).lower() == "delete":
            cloud = remove(cloud, now, address.id)
        else:
            kept = {key: value for key, value in address.properties.items() if key != "ipConfiguration"}
            cloud = cloud.put(replace(address, body={**address.body, "properties": kept}))
    return remove(cloud, now, nic.id)


def remove(cloud: CloudState, now: float, *ids: str) -> CloudState:
    """These are deleted, and no longer billed."""
    for id in ids:
        cloud = prices.end(cloud, id, now)
    return cloud.drop(*ids)


Wall = Callable[[float], datetime]

_WITHDRAWN_AFTER = 0.5  # of the notice: late enough that a client has reacted


def announce(cloud: CloudState, notice: ScheduledEvent, wall: Wall) -> CloudState:
    """The machine gets the notice. At most one event of each kind is pending."""
    pending = [
        one for one in cloud.notices.values() if (one.vm.lower(), one.event) == (notice.vm.lower(), notice.event)
    ]
    return cloud if pending else tell(cloud.put_notice(notice), notice.vm, wall)


def preempt(cloud: CloudState, vm: Resource, now: float, wall: Wall, *, notice_s: float, withdrawn: bool) -> CloudState:
    """A spot machine will be evicted; at once where there is no notice."""
    instance = cloud.instance(vm.id)
    if instance is None or instance.power not in (MachinePower.RUNNING, MachinePower.STARTING):
        return cloud
    cloud = cloud.put_instance(replace(instance, evict_at=None))
    if notice_s <= 0 and not withdrawn:
        return evict(cloud, vm, now)
    withdraw_at = now + notice_s * _WITHDRAWN_AFTER if withdrawn else None
    id = name_uuid("event", vm.id, now)
    return announce(cloud, ScheduledEvent(id, vm.id, "Preempt", now + notice_s, withdraw_at), wall)


def evict(cloud: CloudState, vm: Resource, now: float) -> CloudState:
    """Powered off without further notice, and deallocated or deleted by its policy."""
    operation = Operation(name_uuid("evict", vm.id, now), "vm.deallocate", vm.id, now, now)
    if str(vm.properties.get("evictionPolicy", "Deallocate")).lower() == "delete":
        return destroy(cloud, vm.id, replace(operation, verb="vm.evict"), now)
    return halt(cloud, vm.id, operation, now)


def withdraw(cloud: CloudState, notice: ScheduledEvent, now: float, wall: Wall) -> CloudState:
    """It will not happen. The weather will try again some time."""
    cloud = tell(cloud.drop_notices([notice]), notice.vm, wall)
    instance = cloud.instance(notice.vm)
    if instance is None or not instance.spot:
        return cloud
    again = cloud.weather.next_eviction_s(instance.name, now)
    return cloud.put_instance(replace(instance, evict_at=None if again == float("inf") else now + again))


def come_true(cloud: CloudState, notice: ScheduledEvent, now: float, wall: Wall) -> CloudState:
    """The announced moment has come."""
    cloud = cloud.drop_notices([notice])
    vm, instance = cloud.find(notice.vm), cloud.instance(notice.vm)
    if vm is None or instance is None:
        return cloud
    for neighbour in _neighbours(cloud, vm.id):
        cloud = _told(cloud, neighbour, wall)
    match notice.event:
        case "Preempt":
            return evict(cloud, vm, now)
        case "Terminate":
            return _terminate(cloud, vm, now)
        case "Reboot" | "Redeploy":
            cloud = cloud.order(chore(cloud, "power_off", instance, now))
            cloud = cloud.order(chore(cloud, "start", instance, now))
            return tell(cloud.put_instance(replace(instance, boots=instance.boots + 1)), vm.id, wall)
    return tell(cloud, vm.id, wall)


def acknowledged(cloud: CloudState, machine: str, events: Sequence[str], now: float) -> CloudState:
    """The machine is ready and approves the event before the end of the notice."""
    wanted = {event.lower() for event in events}
    for notice in cloud.notices.values():
        instance = cloud.instance(notice.vm)
        if instance and instance.name == machine and notice.id.lower() in wanted and notice.withdraw_at is None:
            cloud = cloud.put_notice(replace(notice, not_before=min(notice.not_before, now)))
    return cloud


def tell(cloud: CloudState, vm: str, wall: Wall) -> CloudState:
    """Updates Scheduled Events inside the machine, and in the other machines of its scale set."""
    for one in (vm, *_neighbours(cloud, vm)):
        cloud = _told(cloud, one, wall)
    return cloud


def _neighbours(cloud: CloudState, vm: str) -> list[str]:
    found = cloud.find(vm)
    set_ = cloud.find(set_of(found)) if found and set_of(found) else None
    return [one.id for one in members(cloud, set_) if one.id.lower() != vm.lower()] if set_ else []


def _told(cloud: CloudState, vm: str, wall: Wall) -> CloudState:
    instance = cloud.instance(vm)
    if instance is None:
        return cloud
    instance = replace(instance, incarnation=instance.incarnation + 1)
    cloud = cloud.put_instance(instance)
    return cloud.order(chore(cloud, "events", instance, cloud.now, document=document(cloud, vm, wall)))


def document(cloud: CloudState, vm: str, wall: Wall) -> dict[str, Any]:
    instance = cloud.instance(vm)
    about = {one.lower() for one in (vm, *_neighbours(cloud, vm))}
    notices = [notice for notice in cloud.notices.values() if notice.vm.lower() in about]
    return {
        "DocumentIncarnation": instance.incarnation if instance else 0,
        "Events": [_event(notice, wall) for notice in notices],
    }


def _event(notice: ScheduledEvent, wall: Wall) -> dict[str, Any]:
    return {
        "EventId": notice.id.upper(),
        "EventStatus": "Scheduled",
        "EventType": notice.event,
        "ResourceType": "VirtualMachine",
        "Resources": [notice.vm.rsplit("/", 1)[-1]],
        "NotBefore": format_datetime(wall(notice.not_before), usegmt=True),
        "Description": "",
        "EventSource": "User" if notice.event == "Terminate" else "Platform",
        "DurationInSeconds": 5 if notice.event == "Freeze" else -1,
    }


def _terminate(cloud: CloudState, vm: Resource, now: float) -> CloudState:
    waiting = [one for one in cloud.operations.values() if one.open and (one.verb, one.about) == ("vm.delete", vm.id)]
    return destroy(cloud, vm.id, waiting[0], now) if waiting else cloud
