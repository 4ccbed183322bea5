"""Scheduled events: the notice to a machine, and what happens then."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from email.utils import format_datetime
from typing import Any

from stoker.twin.state import CloudState, MachinePower, Operation, Resource, ScheduledEvent, name_uuid
from stoker.twin.time import power

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
        return power.destroy(cloud, vm.id, replace(operation, verb="vm.evict"), now)
    return power.halt(cloud, vm.id, operation, now)


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
            cloud = cloud.order(power.chore(cloud, "power_off", instance, now))
            cloud = cloud.order(power.chore(cloud, "start", instance, now))
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
    set_ = cloud.find(power.set_of(found)) if found and power.set_of(found) else None
    return [one.id for one in power.members(cloud, set_) if one.id.lower() != vm.lower()] if set_ else []


def _told(cloud: CloudState, vm: str, wall: Wall) -> CloudState:
    instance = cloud.instance(vm)
    if instance is None:
        return cloud
    instance = replace(instance, incarnation=instance.incarnation + 1)
    cloud = cloud.put_instance(instance)
    return cloud.order(power.chore(cloud, "events", instance, cloud.now, document=document(cloud, vm, wall)))


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
    return power.destroy(cloud, vm.id, waiting[0], now) if waiting else cloud
