"""What happens to a VM and its machine: allocation, power, and what is deleted with it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from stoker.twin.market import prices, quota
from stoker.twin.state import Charge, Chore, CloudState, Instance, MachinePower, Operation, Resource, name_uuid

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
    kind = "spot" if quota.is_spot(resource) else "on-demand"
    return prices.begin(cloud, Charge(resource.id, kind, quota.size_of(resource).name, resource.region, now))


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
