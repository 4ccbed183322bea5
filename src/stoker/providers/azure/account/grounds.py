"""In which resource groups the nodes of an account are: one per node or gang, or one that an administrator created."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cached_property
from typing import Protocol

from stoker.errors import Locked, NameTaken, NotAllowed
from stoker.providers.azure import naming
from stoker.providers.azure.account.account import Account
from stoker.providers.azure.account.gangs import GangGroups
from stoker.providers.azure.account.holdings import Holding, Holdings, by
from stoker.providers.azure.cloud import AzureCloud, ResourceGroup, Vm
from stoker.providers.azure.deployment.template import NETWORK, SSH_RULE, shared_network, ssh_rules
from stoker.providers.azure.naming import Marks, NodePlace
from stoker.providers.azure.refusals import TAKEN_HINT

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
        """Everything in the group has the network of its region."""
        return nullcontext(self.place(key))

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
