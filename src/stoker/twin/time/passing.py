"""What time brings: operations that end, notices that come true or are withdrawn, evictions, and spot restore."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from stoker.twin import ids
from stoker.twin.arm.ask import Ask
from stoker.twin.arm.vms import scalesets
from stoker.twin.arm.vms.actions import admit, allocation_error
from stoker.twin.market import prices
from stoker.twin.ml import nodes, running
from stoker.twin.refusal import Refused, deployment_failed
from stoker.twin.state import CloudState, MachinePower, Operation, Resource, Restore
from stoker.twin.time import power

_KEPT = 500  # ended operations that can still be read


def advance(cloud: CloudState, now: float, wall: power.Wall) -> CloudState:
    """The cloud at this moment. The same object where nothing was due."""
    before = None
    while before is not cloud:  # an operation may have waited for another
        before = cloud
        for operation in [one for one in cloud.operations.values() if _is_due(cloud, one, now)]:
            cloud = _end(cloud, operation, now)
    cloud = _notices(cloud, now, wall)
    cloud = _evictions(cloud, now, wall)
    cloud = restore_spot(cloud, now, wall)
    cloud = running.advance(cloud, now, wall)
    return _forgotten(cloud)


def performed(cloud: CloudState, chore_id: str, result: Any, error: str) -> CloudState:
    """A chore is done, or failed: then what waits for it fails."""
    chore = cloud.chores.get(chore_id)
    code = "VMExtensionProvisioningError" if chore and chore.verb == "run" else "OSProvisioningInternalError"
    cloud = replace(cloud, chores={key: one for key, one in cloud.chores.items() if key != chore_id})
    for operation in cloud.operations.values():
        if chore_id not in operation.chores or not operation.open:
            continue
        if error:
            operation = replace(operation, error={"code": code, "message": error})
        elif result is not None:
            operation = replace(operation, result=result)
        cloud = cloud.put_operation(operation)
    return cloud


def guest_stopped(cloud: CloudState, vm: str, now: float) -> CloudState:
    """The machine shut itself down. It is stopped, and still billed."""
    instance = cloud.instance(vm)
    busy = instance is not None and any(chore.machine == instance.name for chore in cloud.chores.values())
    if instance is None or instance.power is not MachinePower.RUNNING or busy:
        return cloud
    return power.set_power(cloud, vm, MachinePower.STOPPED, now)


def _is_due(cloud: CloudState, operation: Operation, now: float) -> bool:
    return (
        operation.open
        and operation.due_at <= now
        and not any(chore in cloud.chores for chore in operation.chores)
        and not any(cloud.operations[one].open for one in operation.after if one in cloud.operations)
    )


def _end(cloud: CloudState, operation: Operation, now: float) -> CloudState:
    failed = [one for one in operation.after if one in cloud.operations and cloud.operations[one].error]
    if failed and not operation.error:
        details = [cloud.operations[one].error for one in failed]
        as_text = cloud.weather.errors_as_text
        operation = replace(operation, error=deployment_failed(details, as_text=as_text))
    status = "Failed" if operation.error else "Succeeded"
    cloud = cloud.put_operation(replace(operation, status=status, ended_at=now))
    return ENDS[operation.verb](cloud, operation, now)


def _settled(cloud: CloudState, operation: Operation, _now: float) -> CloudState:
    """Records the result in the resource."""
    resource = cloud.find(operation.about)
    if resource is None or resource.properties["provisioningState"] == "Deleting":
        return cloud
    return cloud.put(resource.having(provisioningState="Failed" if operation.error else "Succeeded"))


def _created(cloud: CloudState, operation: Operation, now: float) -> CloudState:
    if operation.error:  # as in Azure, a VM whose allocation failed stays, and is `Failed`
        return _settled(cloud, operation, now).drop_instance(operation.about)
    return _started(_settled(cloud, operation, now), operation, now)


def _started(cloud: CloudState, operation: Operation, now: float) -> CloudState:
    instance = cloud.instance(operation.about)
    if instance is None or instance.power is not MachinePower.STARTING:
        return cloud
    state = MachinePower.DEALLOCATED if operation.error else MachinePower.RUNNING
    return power.set_power(cloud, operation.about, state, now)


def _powered(state: MachinePower) -> Callable[[CloudState, Operation, float], CloudState]:
    return lambda cloud, operation, now: power.set_power(cloud, operation.about, state, now)


def _vm_deleted(cloud: CloudState, operation: Operation, now: float) -> CloudState:
    vm = cloud.find(operation.about)
    return power.shrunk(power.remove_vm(cloud, vm, now), power.set_of(vm)) if vm else cloud


def _vm_evicted(cloud: CloudState, operation: Operation, now: float) -> CloudState:
    vm = cloud.find(operation.about)
    return lost(power.remove_vm(cloud, vm, now), power.set_of(vm), now) if vm else cloud


def _vm_scaled_in(cloud: CloudState, operation: Operation, now: float) -> CloudState:
    """The set's capacity is already reduced."""
    vm = cloud.find(operation.about)
    return power.remove_vm(cloud, vm, now) if vm else cloud


def _set_deleted(cloud: CloudState, operation: Operation, now: float) -> CloudState:
    set_ = cloud.find(operation.about)
    if set_ is None:
        return cloud
    for vm in power.members(cloud, set_):
        cloud = power.remove_vm(cloud, vm, now)
    cloud = power.forget_restore(cloud, set_.id)
    return power.remove(cloud, now, set_.id, *(one.id for one in cloud.below(set_.id)))


def _nic_deleted(cloud: CloudState, operation: Operation, now: float) -> CloudState:
    nic = cloud.find(operation.about)
    return power.remove_nic(cloud, nic, now) if nic else cloud


def _deleted(cloud: CloudState, operation: Operation, now: float) -> CloudState:
    return power.remove(cloud, now, operation.about)


def _group_deleted(cloud: CloudState, operation: Operation, now: float) -> CloudState:
    inside = [one.id for one in cloud.below(operation.about)]
    for id in inside:
        cloud = power.drop_notices(cloud, id).drop_instance(id)
    return power.remove(cloud, now, operation.about, *inside)


def _nothing(cloud: CloudState, _operation: Operation, _now: float) -> CloudState:
    return cloud


ENDS: dict[str, Callable[[CloudState, Operation, float], CloudState]] = {
    "vm.create": _created,
    "vm.start": _started,
    "vm.restart": _nothing,
    "vm.power_off": _powered(MachinePower.STOPPED),
    "vm.deallocate": _powered(MachinePower.DEALLOCATED),
    "vm.delete": _vm_deleted,
    "vm.evict": _vm_evicted,
    "vm.scale_in": _vm_scaled_in,
    "set.delete": _set_deleted,
    "nic.delete": _nic_deleted,
    "group.delete": _group_deleted,
    "ml.compute.delete": nodes.compute_deleted,
    "run": _nothing,
    "put": _settled,
    "delete": _deleted,
}


def _notices(cloud: CloudState, now: float, wall: power.Wall) -> CloudState:
    for notice in cloud.notices.values():
        if notice.withdraw_at is not None and notice.withdraw_at <= now:
            cloud = power.withdraw(cloud, notice, now, wall)
        elif notice.withdraw_at is None and notice.not_before <= now:
            cloud = power.come_true(cloud, notice, now, wall)
    return cloud


def _evictions(cloud: CloudState, now: float, wall: power.Wall) -> CloudState:
    for instance in cloud.instances.values():
        vm = cloud.find(instance.vm)
        if vm is None or not instance.spot or instance.power is not MachinePower.RUNNING or _going(cloud, vm):
            continue
        by_weather = instance.evict_at is not None and instance.evict_at <= now
        if not by_weather and (not _too_dear(cloud, vm.id, now) or _warned(cloud, vm.id)):
            continue
        notice_s = cloud.weather.notice_s(instance.name, now)
        withdrawn = by_weather and cloud.weather.is_withdrawn(instance.name, now)
        cloud = power.preempt(cloud, vm, now, wall, notice_s=notice_s, withdrawn=withdrawn and notice_s > 0)
    return cloud


def _going(cloud: CloudState, vm: Resource) -> bool:
    """Already being deleted, by itself or with its group."""
    group = cloud.find(vm.target.scope)
    return any(one is not None and one.properties["provisioningState"] == "Deleting" for one in (vm, group))


def _too_dear(cloud: CloudState, vm_id: str, now: float) -> bool:
    vm = cloud.find(vm_id)
    most = float((vm.properties.get("billingProfile") or {}).get("maxPrice", -1)) if vm else -1.0
    return vm is not None and 0 <= most < prices.spot_usd(cloud, prices.size_of(vm), vm.region, now)


def _warned(cloud: CloudState, vm_id: str) -> bool:
    return any(notice.vm.lower() == vm_id.lower() and notice.event == "Preempt" for notice in cloud.notices.values())


def _forgotten(cloud: CloudState) -> CloudState:
    """Drops very old operations."""
    ended = [one.id for one in cloud.operations.values() if not one.open]
    if len(ended) <= _KEPT:
        return cloud
    old = set(ended[: len(ended) - _KEPT])
    return replace(cloud, operations={key: one for key, one in cloud.operations.items() if key not in old})


_VERSION = "2026-04-01"  # accepts whatever the set was created with


def lost(cloud: CloudState, set_: str, now: float) -> CloudState:
    """An instance was evicted. Without a policy the set has one fewer."""
    found = cloud.find(set_)
    if found is None or _deleting(cloud, found):
        return cloud
    policy = found.properties.get("spotRestorePolicy") or {}
    if not policy.get("enabled"):
        return power.shrunk(cloud, found.id)
    before = cloud.restores.get(found.id.lower())
    until, next_at = now + scalesets.restore_s(policy), now + cloud.weather.restore_s
    return cloud.put_restore(Restore(found.id, (before.missing if before else 0) + 1, next_at, until))


def restore_spot(cloud: CloudState, now: float, wall: power.Wall) -> CloudState:
    for restore in cloud.restores.values():
        set_ = cloud.find(restore.set)
        if set_ is None or _deleting(cloud, set_):
            cloud = power.forget_restore(cloud, restore.set)
        elif restore.until <= now:
            cloud = power.forget_restore(power.shrunk(cloud, set_.id, restore.missing), set_.id)
        elif restore.next_at <= now:
            cloud = _tried(cloud, restore, set_, now, wall)
    return cloud


def _tried(cloud: CloudState, restore: Restore, set_: Resource, now: float, wall: power.Wall) -> CloudState:
    """One instance, where capacity is available at a price within the set's maximum."""
    later = cloud.put_restore(replace(restore, next_at=now + cloud.weather.restore_s))
    target, base = ids.read(set_.id), f"https://127.0.0.1:{cloud.port}"
    # A different number at each moment: with it the weather draws whether capacity is available.
    ask = Ask("PUT", set_.id, target, now, wall, {"api-version": _VERSION}, {}, {}, base, int(now * 1000))
    one = scalesets.member(cloud, ask, set_)
    try:
        size = admit(cloud, one)
        later, error = allocation_error(later, ask, size, set_.region)
        if error:
            return later
        cloud = scalesets.make_member(later, one, set_)  # refused where all addresses are taken, or its network is gone
    except Refused:
        return later
    if restore.missing == 1:
        return power.forget_restore(cloud, set_.id)
    return cloud.put_restore(replace(restore, missing=restore.missing - 1, next_at=now))


def _deleting(cloud: CloudState, set_: Resource) -> bool:
    group = cloud.find(set_.target.scope)
    return any(one is None or one.properties["provisioningState"] == "Deleting" for one in (set_, group))
