"""Our nodes as Azure reports them now."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import timedelta

from stoker.errors import ProviderFailed
from stoker.model.node import NodeSight, NodeState
from stoker.providers.azure.account.grounds import Ground, Holding
from stoker.providers.azure.cloud import AzureCloud, GroupMember, Starting
from stoker.providers.azure.market.prices import Catalogue
from stoker.providers.azure.naming import NodePlace

SPARE = timedelta(seconds=300)  # for a VM to save and remove itself after its lease has ended
_INVENTORY_KEPT_S, _MISSED_S = 60.0, 5.0  # Azure limits the request rate; a new group is looked up sooner
# Azure allows all logins of a subscription 300 lists of VMs a minute in a region, and a look is two of them. While all
# VMs work, an older look is enough: a VM reports its eviction itself. So it is for those that are being deleted, which
# takes Azure minutes.
KEPT_S = 5.0
_APART_S = 0.1  # between requests about the deployments of single nodes: Azure has no list of those
_UNFINISHED_S = 10.0  # between two about a VM that runs while the rest of its deployment is under way
_EVICTED = "Azure evicted the VM"
_GOING = ("deallocating", "deallocated", "stopping", "stopped")


class NodeWatch:
    def __init__(
        self,
        cloud: AzureCloud,
        ground: Ground,
        catalogue: Catalogue,
        server: str,
        *,
        kept_s: float = KEPT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cloud = cloud
        self._ground = ground
        self._catalogue = catalogue
        self._server = server
        self._kept_s = kept_s
        self._clock = clock
        self._steady: tuple[float, list[NodeSight]] | None = None  # when, and what: if no VM starts or goes
        self._changes = 0  # that this server has made
        self._inventory: dict[str, tuple[str, ...]] = {}  # by group in lower case: its resources
        self._inventory_at = -_INVENTORY_KEPT_S
        self._starting: dict[str, Starting | None] = {}  # by node key: VMs that are being restarted
        self._ask_again: dict[str, float] = {}  # by node key: when to poll a deployment that is still running
        self._running: dict[str, Holding] = {}  # by node key: those whose VM ran at the last look
        self._whole: set[str] = set()  # node keys: those whose deployment has ended well
        self.places: dict[str, NodePlace] = {}  # by node key: where it was last seen

    def look(self) -> list[NodeSight]:
        steady, changes, now = self._steady, self._changes, self._clock()
        if steady and now - steady[0] < self._kept_s:
            return steady[1]
        found = self._completed(self._ground.found())
        self.places = {one.marks.key: one.place for one in found}
        self._ask_again = {key: at for key, at in self._ask_again.items() if key in self.places}
        self._whole &= self.places.keys()
        sights = [self._seen(one) for one in found]
        calm = bool(sights) and all(one.state is NodeState.UP or one.still for one in sights)
        self._steady = (now, sights) if calm and changes == self._changes else None
        return sights

    def changed(self) -> None:
        """This server has changed a VM: what was seen before, also by a look that is under way, is not used again."""
        self._changes += 1
        self._steady = None

    def expect(self, key: str, starting: Starting | None) -> None:
        """The VM under this key is being restarted; None: it is about to be."""
        self._starting[key] = starting or self._starting.get(key)

    def awaits(self, key: str) -> bool:
        """A restart was requested, and no look has told yet how it ended."""
        return key in self._starting

    def forget(self, key: str) -> None:
        self._starting.pop(key, None)

    def stopped(self, key: str) -> None:
        self.forget(key)
        self._running.pop(key, None)

    def _completed(self, found: list[Holding]) -> list[Holding]:
        """With the nodes that a list of Azure's has just omitted, although their VMs run."""
        vms = {(one.vm.group, one.vm.name) for one in found if one.vm}
        going = {one.marks.key for one in found if one.deleting}
        omitted = [
            one
            for key, one in list(self._running.items())
            if one.vm and (one.vm.group, one.vm.name) not in vms and key not in going
        ]
        kept = {one.marks.key: one for one in omitted if self._cloud.is_running(one.place)}
        found = [*(one for one in found if one.marks.key not in kept), *kept.values()]
        self._running = {
            one.marks.key: one
            for one in found
            if one.vm and one.vm.power == "running" and not one.deleting and not one.vm.deleting
        }
        return found

    def _seen(self, one: Holding) -> NodeSight:
        marks = one.marks
        foreign = marks.server != self._server
        sight = self._sight(marks.key, one)
        return replace(
            sight,
            reason=sight.reason or (f"it belongs to {marks.owner}" if foreign and marks.owner else ""),
            resources=self._resources(one),
            usd_per_hour=self._catalogue.costs(one.vm),
            machine="" if marks.machine == marks.key else marks.machine,
            server=(marks.server or "unknown") if foreign else "",
            lease_until=marks.lease_until,
            expired=marks.lease_until is None or marks.lease_until + SPARE < self._cloud.now(),
        )

    def _sight(self, key: str, one: Holding) -> NodeSight:
        vm = one.vm
        if one.deleting:
            return NodeSight(key, NodeState.GONE, "it is being deleted", still=True)
        if vm and vm.set and vm.deleting:  # by an eviction: an instance is never deleted without its set
            return NodeSight(key, NodeState.GONE, _EVICTED, taken=True)
        if vm is None or not vm.power:  # a VM whose allocation failed exists, and has no power state
            return self._without_machine(key, one)
        if vm.power == "running":
            self._starting.pop(key, None)
            return self._at_work(key, one)
        if key in self._starting:
            return self._started_again(key, self._starting[key])
        if vm.power in _GOING:
            off, kept = vm.power == "deallocated", vm.power.startswith("dealloc")
            return NodeSight(key, NodeState.GONE, _EVICTED, taken=True, still=off, resumable=kept)
        return NodeSight(key, NodeState.STARTING)

    def _started_again(self, key: str, starting: Starting | None) -> NodeSight:
        """Azure shows a VM that it has no capacity for in its earlier state."""
        if starting and starting.done:
            if failure := starting.failure():
                return NodeSight(key, NodeState.GONE, failure.message, failure.code, still=True, resumable=True)
            self.forget(key)  # decided by the next look: this list may be older
        return NodeSight(key, NodeState.STARTING)

    def _at_work(self, key: str, one: Holding) -> NodeSight:
        """Its VM runs, but a later part of its deployment may have failed: without its role it can never remove
        itself."""
        up = NodeSight(key, NodeState.UP)
        if one.marks.server != self._server or key in self._whole:
            return up
        if self._clock() < self._ask_again.setdefault(key, self._next_turn(0.0)):
            return up
        try:
            made = self._cloud.deployed(one.place)
        except ProviderFailed:  # the lists were answered: this one answer costs no VM its life
            self._ask_again[key] = self._next_turn(_UNFINISHED_S)
            return up
        if made and made.failure:
            return NodeSight(key, NodeState.GONE, made.failure.message, made.failure.code)
        if made and made.running:
            self._ask_again[key] = self._next_turn(_UNFINISHED_S)
        else:
            self._whole.add(key)
            self._ask_again.pop(key, None)
        return up

    def _next_turn(self, pause_s: float) -> float:
        return self._clock() + pause_s + _APART_S * len(self._ask_again)

    def _without_machine(self, key: str, one: Holding) -> NodeSight:
        place = one.place
        if self._clock() < self._ask_again.get(key, 0.0):
            return NodeSight(key, NodeState.STARTING)
        made = self._cloud.deployed(place)
        if made is None or not made.begun:
            begun = not place.shared  # an own group waits for its VM; in a shared one this is a remainder
            return NodeSight(key, NodeState.GONE, "its VM was never requested", still=True, unfinished=begun)
        if made.failure:
            # A repeated request creates a plain VM instead.
            again = made.set_refused
            code = "" if again else made.failure.code
            return NodeSight(key, NodeState.GONE, made.failure.message, code, still=True, unfinished=again)
        if made.running or one.vm:
            self._ask_again[key] = self._next_turn(0.0)
            return NodeSight(key, NodeState.STARTING)
        self._ask_again.pop(key, None)
        # While its scale set exists, Azure may restore it.
        return NodeSight(key, NodeState.GONE, _EVICTED, taken=True, still=not place.set)

    def _resources(self, one: Holding) -> tuple[str, ...]:
        if one.parts is not None:
            return _listed(one.parts)
        group = one.place.group.lower()
        kept_s = _INVENTORY_KEPT_S if group in self._inventory else _MISSED_S
        if self._clock() - self._inventory_at >= kept_s:
            self._inventory = {name: _listed(parts) for name, parts in self._cloud.inventory().items()}
            self._inventory_at = self._clock()
        return self._inventory.get(group, ())


def _listed(parts: Iterable[GroupMember]) -> tuple[str, ...]:
    """Each as `kind/name`."""
    return tuple(sorted(f"{one.kind.split('/', 1)[1]}/{one.name}" for one in parts))
