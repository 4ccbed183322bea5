"""In which resource groups the nodes of an account are: one per node or gang, or one that all share."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count
from typing import Protocol

from stoker.errors import Locked, NameTaken, NotAllowed
from stoker.providers.azure import naming
from stoker.providers.azure.account.account import Account
from stoker.providers.azure.cloud import AzureCloud, GroupMember, ResourceGroup, Vm
from stoker.providers.azure.naming import Marks, NodePlace
from stoker.providers.azure.refusals import TAKEN_HINT
from stoker.providers.azure.template import (
    COMPUTE,
    NETWORK,
    SSH_RULE,
    gang_network,
    shared_network,
    shared_placement,
    ssh_rules,
)

Joined = AbstractContextManager[NodePlace]


class Ground(Protocol):
    def place(self, key: str) -> NodePlace:
        """Where a node with this key is created."""

    def joined(self, gang: str, key: str, region: str, tags: Mapping[str, str]) -> Joined:
        """Where a node of a gang is created, while that is under way: it reaches the others of the same gang."""

    def found(self) -> list[Holding]:
        """Everything of this workspace that this login is responsible for."""

    def prepare(self, place: NodePlace, region: str, tags: Mapping[str, str], *, there: bool) -> None:
        """Creates what a VM requires. `there`: something exists at this place already."""

    def stop(self, key: str) -> None:
        """Starts or continues the removal of everything of this node. Calling it twice, or for an unknown key, is
        fine."""


class OwnGroups:
    """One group per node, or per gang: deleting it leaves nothing. For a single user of a subscription."""

    def __init__(self, cloud: AzureCloud, account: Account) -> None:
        self._cloud = cloud
        self._account = account
        self._gangs = GangGroups(cloud, account)

    def place(self, key: str) -> NodePlace:
        return NodePlace(naming.group_name(self._account.workspace, key))

    def found(self) -> list[Holding]:
        groups, vms = self._cloud.groups(), self._cloud.vms()
        own = by(vms, lambda vm: vm.group)
        alone = [
            self._holding(group, marks, own.get(group.name.lower()))
            for group in groups
            if (marks := self._cloud.marks(group)) and not _of_gang(group)
        ]
        return [*alone, *self._gangs.found(filter(_of_gang, groups), vms)]

    def joined(self, gang: str, key: str, region: str, tags: Mapping[str, str]) -> Joined:
        return self._gangs.joined(gang, key, region, tags)

    def _holding(self, group: ResourceGroup, marks: Marks, vm: Vm | None) -> Holding:
        of_set = (group.tags or {}).get(naming.FORM) == naming.SET
        place = NodePlace(group.name, set=of_set, instance=vm.name if vm else "")
        return Holding(place, marks, vm, group.deleting)

    def prepare(self, place: NodePlace, region: str, tags: Mapping[str, str], *, there: bool) -> None:
        if place.gang:
            return
        if there and not self._is_ours(place, tags[naming.KEY]):
            raise NameTaken(f"the resource group {place.group} exists and was not created by Stoker", hint=TAKEN_HINT)
        self._cloud.make_group(place.group, region, tags)

    def stop(self, key: str) -> None:
        """The group of this node's name may belong to a later node by now."""
        groups, named = self._cloud.groups(), self.place(key)
        if gangs := [one for one in groups if _of_gang(one)]:
            self._gangs.stop(key, self._gangs.found(gangs, self._cloud.vms()))
        alone = [one for one in groups if not _of_gang(one)]
        mine = [NodePlace(one.name) for one in alone if (marks := self._cloud.marks(one)) and marks.key == key]
        listed = named.group in {group.name for group in groups}
        for place in mine or ([named] if not listed and self._is_ours(named, key) else []):
            self._delete(place)

    def _is_ours(self, place: NodePlace, key: str) -> bool:
        """A list may omit what exists, and a name alone does not make a group ours."""
        found = self._cloud.group(place.group)
        marks = self._cloud.marks(found) if found else None
        return marks is not None and marks.key == key

    def _delete(self, place: NodePlace) -> None:
        """A group with a lock cannot be deleted, but its VM can be deallocated, so it is no longer billed."""
        try:
            self._cloud.delete_group(place.group)
        except Locked:
            for vm in self._cloud.vms():
                if vm.group == place.group.lower():
                    self._cloud.switch_off(replace(place, instance=vm.name))
            raise


class SharedGroup:
    """All nodes of a login are in the one group where it has the role of a practitioner, and in one network for each
    region."""

    def __init__(self, cloud: AzureCloud, account: Account) -> None:
        self._cloud = cloud
        self._account = account
        self._holdings = Holdings(cloud, account.workspace)
        self._near: set[str] = set()  # regions in which the group has a placement group

    @cached_property
    def group(self) -> str:
        found = self._cloud.groups_with_role(self._account.practitioner)
        if not found:
            workspace = self._account.workspace
            raise NotAllowed(
                f"this login has no access to the workspace {workspace}: it has no resource group for its VMs",
                hint="an administrator runs: stoker admin setup azure "
                f"--workspace {workspace} --practitioner {self._cloud.me()}",
            )
        own = [name for name in found if name.lower().endswith(self._cloud.me().lower())]
        return (own or found)[0]  # a login with both personal and group access uses its own group

    def place(self, key: str) -> NodePlace:
        return naming.shared_place(self.group, key)

    def joined(self, gang: str, key: str, region: str, tags: Mapping[str, str]) -> Joined:  # noqa: ARG002
        """Everything in the group has the network of its region, and gangs its placement group."""
        return nullcontext(replace(self.place(key), near=self._has_placement(region)))

    def _has_placement(self, region: str) -> bool:
        """A set-up by an earlier version created none, and its role may not read one: gangs then do without."""
        if region not in self._near:
            id = shared_placement(naming.group_id(self._account.subscription, self.group), region)
            with suppress(NotAllowed):
                if self._cloud.get(id, COMPUTE):
                    self._near.add(region)
        return region in self._near

    def found(self) -> list[Holding]:
        return self._holdings.found(self._cloud.vms(), self.group, naming.shared_place)

    def prepare(self, place: NodePlace, region: str, tags: Mapping[str, str], *, there: bool) -> None:  # noqa: ARG002
        """An administrator owns the group and its network, which always exist. This login decides whether the ssh port
        is open, and for which addresses."""
        if self._account.subnet:
            return
        network = f"Microsoft.Network/networkSecurityGroups/{shared_network(region)}"
        id = f"{place.group_id(self._account.subscription)}/providers/{network}/securityRules/{SSH_RULE}"
        wanted, found = ssh_rules(self._account), self._cloud.get(id, NETWORK)
        if not wanted and found:
            self._cloud.delete_by_id(id, NETWORK)
        properties = (found or {}).get("properties", {})
        if wanted and any(properties.get(name) != value for name, value in wanted[0]["properties"].items()):
            self._cloud.put_by_id(id, NETWORK, {"properties": wanted[0]["properties"]})

    def stop(self, key: str) -> None:
        found = self.found()
        mine = [one for one in found if one.marks.key == key]
        named = self.place(key)
        if not mine and key not in {one.marks.machine for one in found} and (there := self._cloud.machine(named)):
            place, part = there
            marks = naming.marks(part.tags, self._account.workspace)
            if marks and marks.key == key:  # lists may omit what exists
                self._holdings.delete_machine(place)
        for one in mine:
            self._holdings.remove(one)


def _of_gang(group: ResourceGroup) -> bool:
    return bool(group.tags.get(naming.GANG))


def ground(cloud: AzureCloud, account: Account) -> Ground:
    return SharedGroup(cloud, account) if account.practitioner else OwnGroups(cloud, account)


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


_SET = "virtualMachineScaleSets"
# What may remain of a VM, and what holds it: Azure refuses to delete a resource while another one uses it. Nothing uses
# an identity; it goes once the deletion of its VM is accepted, since the VM then no longer removes itself.
_HELD_BY = {
    "networkInterfaces": "virtualMachines",
    "publicIPAddresses": "networkInterfaces",
    "disks": "virtualMachines",
    "userAssignedIdentities": "",
}


@dataclass(frozen=True, slots=True)
class Holding:
    """All resources of one VM that Azure reports now. `parts` is None where they were not listed yet."""

    place: NodePlace
    marks: Marks
    vm: Vm | None
    deleting: bool
    parts: tuple[GroupMember, ...] | None = None


class Holdings:
    """Each resource of a node carries the node's tags or name; the deployment record exists before anything else."""

    def __init__(self, cloud: AzureCloud, workspace: str) -> None:
        self._cloud = cloud
        self._workspace = workspace
        self._keys: dict[str, str] = {}  # by the machine's first key: the one that it has now

    def found(self, vms: Iterable[Vm], group: str, place: Callable[[str, str], NodePlace]) -> list[Holding]:
        """Those in this group. `place` gives the place of a machine in a group."""
        here = [vm for vm in vms if vm.group == group.lower()]
        named = by(here, lambda vm: (vm.set or vm.name).lower())
        parts = self._cloud.parts(group)
        known: dict[str, Marks] = {}
        # The tags of the VM or scale set itself come last: they name the current owner. An instance has the tags that
        # its set had when the instance was created.
        first = [one.tags for one in (*self._cloud.deployments(group), *parts) if not _is_set(one)]
        last = [vm.tags for vm in here if not vm.set] + [one.tags for one in parts if _is_set(one)]
        for tags in (*first, *last):
            if marks := naming.marks(tags, self._workspace):
                known[marks.machine] = marks
        for tags in last:
            if marks := naming.marks(tags, self._workspace):
                self._keys[marks.machine] = marks.key
        return [
            self._holding(place(group, machine), replace(marks, key=self._keys.get(machine, marks.key)), named, parts)
            for machine, marks in known.items()
        ]

    def remove(self, one: Holding) -> None:
        """One step of the removal: a caller that still sees resources calls again."""
        made = self._cloud.deployed(one.place)
        running = made is not None and made.running
        if running:
            self._cloud.cancel(one.place)
        left = [(part, part.kind.rsplit("/", 1)[1]) for part in one.parts or ()]
        kinds = {kind for _, kind in left}
        if one.vm or {"virtualMachines", _SET} & kinds:
            if not one.deleting:
                self.delete_machine(one.place)
            kinds |= {"virtualMachines"}
        for part in (part for part, kind in left if kind in _HELD_BY and _HELD_BY[kind] not in kinds):
            self._cloud.delete_part(part)
        if made and made.begun and not running:
            self._cloud.delete_deployment(one.place)

    def delete_machine(self, place: NodePlace) -> None:
        try:
            self._cloud.delete_machine(place)
        except Locked:
            self._cloud.switch_off(place)
            raise

    def _holding(self, place: NodePlace, marks: Marks, vms: Mapping[str, Vm], parts: list[GroupMember]) -> Holding:
        vm = vms.get(place.name.lower())
        own = tuple(one for one in parts if place.owns(one.name.split("/", 1)[0]))
        sets = [one for one in own if _is_set(one)]
        place = replace(place, set=bool(sets), instance=vm.name if vm else "")
        going = sets[0].deleting if sets else vm is not None and vm.deleting
        return Holding(place, marks, vm, going, own)


def _is_set(part: GroupMember) -> bool:
    return part.kind.rsplit("/", 1)[-1] == _SET


def by(vms: Iterable[Vm], name: Callable[[Vm], str]) -> dict[str, Vm]:
    """Of two under one name, the one that stays: an instance may be restored while its predecessor is being deleted."""
    return {name(vm): vm for vm in sorted(vms, key=lambda vm: not vm.deleting)}
