"""What is there of ours, as Azure sees it now: groups and machines as sightings of nodes."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import timedelta

from stoker.model.node import NodeSight, NodeState
from stoker.providers.azure.catalogue import Catalogue
from stoker.providers.azure.cloud import Cloud, Group, Starting, Vm
from stoker.providers.azure.naming import Marks

SPARE = timedelta(seconds=300)  # for a machine whose lease is over to save and remove itself
_INVENTORY_KEPT_S, _FOREIGN_KEPT_S = 60.0, 600.0  # Azure counts requests
_GOING = ("deallocating", "deallocated", "stopping", "stopped")


class Watch:
    def __init__(self, cloud: Cloud, catalogue: Catalogue, server: str) -> None:
        self._cloud = cloud
        self._catalogue = catalogue
        self._server = server
        self._inventory: dict[str, tuple[float, tuple[str, ...]]] = {}  # by group: when it was asked, what is in it
        self._starting: dict[str, Starting | None] = {}  # by node key: machines that are being switched on again
        self.places: dict[str, str] = {}  # by node key: the group it was last seen in

    def look(self) -> list[NodeSight]:
        vms = {vm.group: vm for vm in self._cloud.vms()}
        groups = self._cloud.groups()
        names = {group.name for group in groups}
        self._inventory = {name: known for name, known in self._inventory.items() if name in names}
        ours = [(group, marks) for group in groups if (marks := self._cloud.marks(group))]
        self.places = {marks.key: group.name for group, marks in ours}
        return [self._seen(group, marks, vms.get(group.name.lower())) for group, marks in ours]

    def expect(self, key: str, starting: Starting | None) -> None:
        """The machine under this key is being switched on again; None: it is about to be."""
        self._starting[key] = starting or self._starting.get(key)

    def forget(self, key: str) -> None:
        self._starting.pop(key, None)

    def _seen(self, group: Group, marks: Marks, vm: Vm | None) -> NodeSight:
        foreign = marks.server != self._server
        sight = self._sight(marks.key, group, vm)
        return replace(
            sight,
            reason=sight.reason or (f"it is {marks.owner}'s" if foreign and marks.owner else ""),
            resources=self._resources(group, _FOREIGN_KEPT_S if foreign else _INVENTORY_KEPT_S),
            usd_per_hour=self._catalogue.costs(vm),
            machine="" if marks.machine == marks.key else marks.machine,
            server=(marks.server or "unknown") if foreign else "",
            lease_until=marks.lease_until,
            expired=marks.lease_until is None or marks.lease_until + SPARE < self._cloud.now(),
        )

    def _sight(self, key: str, group: Group, vm: Vm | None) -> NodeSight:
        if group.deleting:
            return NodeSight(key, NodeState.GONE, "it is being deleted", still=True)
        if vm is None or not vm.power:  # a machine that could not be allocated is there, and has no power state
            return self._without_machine(key, group, there=vm is not None)
        if vm.power == "running":
            self._starting.pop(key, None)
            return NodeSight(key, NodeState.UP)
        if key in self._starting:
            return self._started_again(key, self._starting[key])
        if vm.power in _GOING:
            off, kept = vm.power == "deallocated", vm.power.startswith("dealloc")
            return NodeSight(key, NodeState.GONE, "Azure took the machine away", taken=True, still=off, resumable=kept)
        return NodeSight(key, NodeState.STARTING)

    def _started_again(self, key: str, starting: Starting | None) -> NodeSight:
        """Azure shows a machine that it has no room for as it was before it was asked."""
        if starting and starting.done:
            if failure := starting.failure():
                return NodeSight(key, NodeState.GONE, failure.message, failure.code, still=True, resumable=True)
            self.forget(key)  # the next look tells: what this one listed may be older
        return NodeSight(key, NodeState.STARTING)

    def _without_machine(self, key: str, group: Group, *, there: bool) -> NodeSight:
        made = self._cloud.deployed(group.name)
        if made is None or not made.begun:
            return NodeSight(key, NodeState.GONE, "its machine was never asked for", still=True, unfinished=True)
        if made.failure:
            return NodeSight(key, NodeState.GONE, made.failure.message, made.failure.code, still=True)
        if made.running or there:
            return NodeSight(key, NodeState.STARTING)
        return NodeSight(key, NodeState.GONE, "Azure took the machine away", taken=True, still=True)

    def _resources(self, group: Group, kept_s: float) -> tuple[str, ...]:
        read_at, resources = self._inventory.get(group.name, (-kept_s, ()))
        if time.monotonic() - read_at >= kept_s:
            resources = self._cloud.resources(group.name)
            self._inventory[group.name] = (time.monotonic(), resources)
        return resources
