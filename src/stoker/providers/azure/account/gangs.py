"""The nodes of one gang: in one resource group, with a network of their own, of which each may remove itself alone."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import count

from stoker.errors import Locked
from stoker.providers.azure import naming
from stoker.providers.azure.account.account import Account
from stoker.providers.azure.account.holdings import Holding, Holdings
from stoker.providers.azure.cloud import AzureCloud, ResourceGroup, Vm
from stoker.providers.azure.deployment.network import gang_network
from stoker.providers.azure.naming import NodePlace


class GangGroups:
    """Who comes first creates the group and its network, and who leaves last deletes them. A group is never deleted
    while a node is about to be deployed to it."""

    def __init__(self, cloud: AzureCloud, account: Account) -> None:
        self._cloud = cloud
        self._account = account
        self._holdings = Holdings(cloud, account.workspace)
        self._lock = threading.Lock()
        self._ready: dict[tuple[str, str], str] = {}  # by gang and region: the group that has a network
        self._joining: Counter[str] = Counter()  # by group: nodes that are about to be deployed
        self._stopped: set[str] = set()  # node keys

    @contextmanager
    def joined(self, gang: str, key: str, region: str, tags: Mapping[str, str]) -> Iterator[NodePlace]:
        """Where a node of the gang is deployed; its group stays until this ends. `tags` are those of a new group."""
        with self._lock:
            group = self._group(gang, region, tags)
            self._joining[group] += 1
            self._stopped.discard(key)
        try:
            yield naming.gang_place(group, key)
        finally:
            with self._lock:
                self._joining[group] -= 1

    def found(self, groups: Iterable[ResourceGroup], vms: list[Vm]) -> list[Holding]:
        """Of these groups, all nodes. A group without any counts as one node whose VM was never requested."""
        found: list[Holding] = []
        for group in groups:
            nodes = self._holdings.found(vms, group.name, naming.gang_place)
            found += [replace(one, deleting=one.deleting or group.deleting) for one in nodes]
            if not nodes and (marks := self._cloud.marks(group)):
                parts = tuple(self._cloud.parts(group.name))
                found.append(Holding(NodePlace(group.name, gang=True), marks, None, group.deleting, parts))
        return found

    def stop(self, key: str, found: list[Holding]) -> None:
        for one in (one for one in found if one.marks.key == key):
            group = one.place.group
            with self._lock:
                self._stopped.add(key)
                stay = [
                    other
                    for other in found
                    if other.place.group == group and not other.deleting and other.marks.key not in self._stopped
                ]
                if not stay and not self._joining[group]:
                    self._delete(group, one)
                    continue
            self._holdings.remove(one)

    def _delete(self, group: str, one: Holding) -> None:
        """A group with a lock stays, but the VM can be deallocated, so it is no longer billed."""
        self._ready = {gang: name for gang, name in self._ready.items() if name != group}
        try:
            self._cloud.delete_group(group)
        except Locked:
            if one.place.shared:
                self._cloud.switch_off(one.place)
            raise

    def _group(self, gang: str, region: str, tags: Mapping[str, str]) -> str:
        """The group of the gang in this region, with its network."""
        known = self._ready.get((gang, region), "")
        if known and self._is_theirs(self._cloud.group(known), gang, region):
            return known
        # Concurrent deployments cannot create one network, so it exists before the first of them.
        name = self._existing(gang, region) or self._new(gang, region, tags)
        kept = {tag: tags[tag] for tag in (naming.WORKSPACE, naming.SERVER)}
        self._cloud.deploy_parts(name, gang_network(self._account, region, kept))
        self._ready[gang, region] = name
        return name

    def _existing(self, gang: str, region: str) -> str:
        found = (one.name for one in self._cloud.groups() if self._is_theirs(one, gang, region))
        return next(found, "")

    def _new(self, gang: str, region: str, tags: Mapping[str, str]) -> str:
        for number in count(1):
            name = naming.gang_group(self._account.workspace, gang, number)
            there = self._cloud.group(name)
            if there is None:
                self._cloud.make_group(name, region, {**tags, naming.GANG: gang})
            if there is None or self._is_theirs(there, gang, region):  # lists may omit what exists
                return name
        raise AssertionError

    def _is_theirs(self, group: ResourceGroup | None, gang: str, region: str) -> bool:
        if group is None or group.deleting or self._cloud.marks(group) is None:
            return False
        return group.tags.get(naming.GANG) == gang and group.region == region
