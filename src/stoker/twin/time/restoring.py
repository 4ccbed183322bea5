"""Spot restore: what an eviction took from a scale set is tried to be given back, until its time is over."""

from __future__ import annotations

from dataclasses import replace

from stoker.twin import ids
from stoker.twin.arm.requests.ask import Ask
from stoker.twin.arm.vms import scalesets, setrules
from stoker.twin.arm.vms.admission import admit, allocation_error
from stoker.twin.refusal import Refused
from stoker.twin.state import Cloud, Resource, Restore
from stoker.twin.time import events, power

_VERSION = "2026-04-01"  # takes whatever the set was made with


def lost(cloud: Cloud, set_: str, now: float) -> Cloud:
    """An instance was evicted. Without a policy the set has one less."""
    found = cloud.find(set_)
    if found is None or _deleting(cloud, found):
        return cloud
    policy = found.properties.get("spotRestorePolicy") or {}
    if not policy.get("enabled"):
        return power.shrunk(cloud, found.id)
    before = cloud.restores.get(found.id.lower())
    until, next_at = now + setrules.restore_s(policy), now + cloud.weather.restore_s
    return cloud.put_restore(Restore(found.id, (before.missing if before else 0) + 1, next_at, until))


def advance(cloud: Cloud, now: float, wall: events.Wall) -> Cloud:
    for restore in cloud.restores.values():
        set_ = cloud.find(restore.set)
        if set_ is None or _deleting(cloud, set_):
            cloud = power.forget_restore(cloud, restore.set)
        elif restore.until <= now:
            cloud = power.forget_restore(power.shrunk(cloud, set_.id, restore.missing), set_.id)
        elif restore.next_at <= now:
            cloud = _tried(cloud, restore, set_, now, wall)
    return cloud


def _tried(cloud: Cloud, restore: Restore, set_: Resource, now: float, wall: events.Wall) -> Cloud:
    """One instance, where there is a machine for it at a price that the set pays."""
    later = cloud.put_restore(replace(restore, next_at=now + cloud.weather.restore_s))
    target, base = ids.read(set_.id), f"https://127.0.0.1:{cloud.port}"
    # As many different numbers as moments: the weather draws by them whether there is a machine.
    ask = Ask("PUT", set_.id, target, now, wall, {"api-version": _VERSION}, {}, {}, base, int(now * 1000))
    one = scalesets.member(cloud, ask, set_)
    try:
        size = admit(cloud, one)
    except Refused:
        return later
    later, error = allocation_error(later, ask, size, set_.region)
    if error:
        return later
    cloud = scalesets.make_member(later, one, set_)
    if restore.missing == 1:
        return power.forget_restore(cloud, set_.id)
    return cloud.put_restore(replace(restore, missing=restore.missing - 1, next_at=now))


def _deleting(cloud: Cloud, set_: Resource) -> bool:
    group = cloud.find(set_.target.scope)
    return any(one is None or one.properties["provisioningState"] == "Deleting" for one in (set_, group))
