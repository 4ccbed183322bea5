"""What time brings: operations that end, notices that come true or are withdrawn, and the weather's evictions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from stoker.twin.market import prices, quota
from stoker.twin.refusal import deployment_failed
from stoker.twin.state import Cloud, Operation, Power, Resource
from stoker.twin.time import events, restoring
from stoker.twin.time import power as lifecycle

_KEPT = 500  # ended operations that can still be asked for


def advance(cloud: Cloud, now: float, wall: events.Wall) -> Cloud:
    """The cloud as it is at this moment. Nothing changes where nothing was due."""
    before = None
    while before is not cloud:  # an operation may have waited for another
        before = cloud
        for operation in [one for one in cloud.operations.values() if _is_due(cloud, one, now)]:
            cloud = _end(cloud, operation, now)
    cloud = _notices(cloud, now, wall)
    cloud = _evictions(cloud, now, wall)
    cloud = restoring.advance(cloud, now, wall)
    return _forgotten(cloud)


def performed(cloud: Cloud, chore_id: str, result: Any, error: str) -> Cloud:
    """A chore is done, or could not be: then what waits for it fails."""
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


def guest_stopped(cloud: Cloud, vm: str, now: float) -> Cloud:
    """The machine shut itself down. It is stopped, and still costs money."""
    instance = cloud.instance(vm)
    busy = instance is not None and any(chore.machine == instance.name for chore in cloud.chores.values())
    if instance is None or instance.power is not Power.RUNNING or busy:
        return cloud
    return lifecycle.set_power(cloud, vm, Power.STOPPED, now)


def _is_due(cloud: Cloud, operation: Operation, now: float) -> bool:
    return (
        operation.open
        and operation.due_at <= now
        and not any(chore in cloud.chores for chore in operation.chores)
        and not any(cloud.operations[one].open for one in operation.after if one in cloud.operations)
    )


def _end(cloud: Cloud, operation: Operation, now: float) -> Cloud:
    failed = [one for one in operation.after if one in cloud.operations and cloud.operations[one].error]
    if failed and not operation.error:
        details = [cloud.operations[one].error for one in failed]
        as_text = cloud.weather.errors_as_text
        operation = replace(operation, error=deployment_failed(details, as_text=as_text))
    status = "Failed" if operation.error else "Succeeded"
    cloud = cloud.put_operation(replace(operation, status=status, ended_at=now))
    return ENDS[operation.verb](cloud, operation, now)


def _settled(cloud: Cloud, operation: Operation, _now: float) -> Cloud:
    """The resource says how it went."""
    resource = cloud.find(operation.about)
    if resource is None or resource.properties["provisioningState"] == "Deleting":
        return cloud
    return cloud.put(resource.having(provisioningState="Failed" if operation.error else "Succeeded"))


def _created(cloud: Cloud, operation: Operation, now: float) -> Cloud:
    if operation.error:  # as in Azure, the VM that could not be had stays there, and is `Failed`
        return _settled(cloud, operation, now).drop_instance(operation.about)
    return _started(_settled(cloud, operation, now), operation, now)


def _started(cloud: Cloud, operation: Operation, now: float) -> Cloud:
    instance = cloud.instance(operation.about)
    if instance is None or instance.power is not Power.STARTING:
        return cloud
    power = Power.DEALLOCATED if operation.error else Power.RUNNING
    return lifecycle.set_power(cloud, operation.about, power, now)


def _powered(power: Power) -> Callable[[Cloud, Operation, float], Cloud]:
    return lambda cloud, operation, now: lifecycle.set_power(cloud, operation.about, power, now)


def _vm_deleted(cloud: Cloud, operation: Operation, now: float) -> Cloud:
    vm = cloud.find(operation.about)
    return lifecycle.shrunk(lifecycle.remove_vm(cloud, vm, now), lifecycle.set_of(vm)) if vm else cloud


def _vm_evicted(cloud: Cloud, operation: Operation, now: float) -> Cloud:
    vm = cloud.find(operation.about)
    return restoring.lost(lifecycle.remove_vm(cloud, vm, now), lifecycle.set_of(vm), now) if vm else cloud


def _vm_scaled_in(cloud: Cloud, operation: Operation, now: float) -> Cloud:
    """The set's capacity says so already."""
    vm = cloud.find(operation.about)
    return lifecycle.remove_vm(cloud, vm, now) if vm else cloud


def _set_deleted(cloud: Cloud, operation: Operation, now: float) -> Cloud:
    set_ = cloud.find(operation.about)
    if set_ is None:
        return cloud
    for vm in lifecycle.members(cloud, set_):
        cloud = lifecycle.remove_vm(cloud, vm, now)
    cloud = lifecycle.forget_restore(cloud, set_.id)
    return lifecycle.remove(cloud, now, set_.id, *(one.id for one in cloud.below(set_.id)))


def _nic_deleted(cloud: Cloud, operation: Operation, now: float) -> Cloud:
    nic = cloud.find(operation.about)
    return lifecycle.remove_nic(cloud, nic, now) if nic else cloud


def _deleted(cloud: Cloud, operation: Operation, now: float) -> Cloud:
    return lifecycle.remove(cloud, now, operation.about)


def _group_deleted(cloud: Cloud, operation: Operation, now: float) -> Cloud:
    inside = [one.id for one in cloud.below(operation.about)]
    for id in inside:
        cloud = lifecycle.drop_notices(cloud, id).drop_instance(id)
    return lifecycle.remove(cloud, now, operation.about, *inside)


def _nothing(cloud: Cloud, _operation: Operation, _now: float) -> Cloud:
    return cloud


ENDS: dict[str, Callable[[Cloud, Operation, float], Cloud]] = {
    "vm.create": _created,
    "vm.start": _started,
    "vm.restart": _nothing,
    "vm.power_off": _powered(Power.STOPPED),
    "vm.deallocate": _powered(Power.DEALLOCATED),
    "vm.delete": _vm_deleted,
    "vm.evict": _vm_evicted,
    "vm.scale_in": _vm_scaled_in,
    "set.delete": _set_deleted,
    "nic.delete": _nic_deleted,
    "group.delete": _group_deleted,
    "run": _nothing,
    "put": _settled,
    "delete": _deleted,
}


def _notices(cloud: Cloud, now: float, wall: events.Wall) -> Cloud:
    for notice in cloud.notices.values():
        if notice.withdraw_at is not None and notice.withdraw_at <= now:
            cloud = events.withdraw(cloud, notice, now, wall)
        elif notice.withdraw_at is None and notice.not_before <= now:
            cloud = events.come_true(cloud, notice, now, wall)
    return cloud


def _evictions(cloud: Cloud, now: float, wall: events.Wall) -> Cloud:
    for instance in cloud.instances.values():
        vm = cloud.find(instance.vm)
        if vm is None or not instance.spot or instance.power is not Power.RUNNING or _going(cloud, vm):
            continue
        by_weather = instance.evict_at is not None and instance.evict_at <= now
        if not by_weather and (not _too_dear(cloud, vm.id, now) or _warned(cloud, vm.id)):
            continue
        notice_s = cloud.weather.notice_s(instance.name, now)
        withdrawn = by_weather and cloud.weather.is_withdrawn(instance.name, now)
        cloud = events.preempt(cloud, vm, now, wall, notice_s=notice_s, withdrawn=withdrawn and notice_s > 0)
    return cloud


def _going(cloud: Cloud, vm: Resource) -> bool:
    """Deleted already, by itself or with its group."""
    group = cloud.find(vm.target.scope)
    return any(one is not None and one.properties["provisioningState"] == "Deleting" for one in (vm, group))


def _too_dear(cloud: Cloud, vm_id: str, now: float) -> bool:
    vm = cloud.find(vm_id)
    most = float((vm.properties.get("billingProfile") or {}).get("maxPrice", -1)) if vm else -1.0
    return vm is not None and 0 <= most < prices.spot_usd(cloud, quota.size_of(vm), vm.region, now)


def _warned(cloud: Cloud, vm_id: str) -> bool:
    return any(notice.vm.lower() == vm_id.lower() and notice.event == "Preempt" for notice in cloud.notices.values())


def _forgotten(cloud: Cloud) -> Cloud:
    """Very old operations are no longer known."""
    ended = [one.id for one in cloud.operations.values() if not one.open]
    if len(ended) <= _KEPT:
        return cloud
    old = set(ended[: len(ended) - _KEPT])
    return replace(cloud, operations={key: one for key, one in cloud.operations.items() if key not in old})
