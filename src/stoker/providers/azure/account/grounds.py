"""Where the nodes of an account are: each in a group of its own, or all of a login in one an administrator made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

from stoker.errors import Locked, NameTaken, NotAllowed
from stoker.providers.azure import naming
from stoker.providers.azure.account.account import Account
from stoker.providers.azure.cloud import Cloud, Group, Part, Vm
from stoker.providers.azure.deployment.template import NETWORK, SSH_RULE, shared_network, ssh_rules
from stoker.providers.azure.naming import Marks, Place
from stoker.providers.azure.refusals import TAKEN_HINT

_SET = "virtualMachineScaleSets"
# What may be left of a machine, and what holds it: Azure refuses to delete it until that is gone. An identity nobody
# holds; it goes when the deletion of its machine has been accepted, which then needs none to remove itself.
_HELD_BY = {
    "networkInterfaces": "virtualMachines",
    "publicIPAddresses": "networkInterfaces",
    "disks": "virtualMachines",
    "userAssignedIdentities": "",
}


@dataclass(frozen=True, slots=True)
class Holding:
    """Everything of one machine, as far as Azure says now. `parts` is None where it was not asked for yet."""

    place: Place
    marks: Marks
    vm: Vm | None
    deleting: bool
    parts: tuple[Part, ...] | None = None


class Ground(Protocol):
    def place(self, key: str) -> Place:
        """Where a node with this key is made."""

    def found(self) -> list[Holding]:
        """Everything of this workspace that this login answers for."""

    def prepare(self, place: Place, region: str, tags: Mapping[str, str], *, there: bool) -> None:
        """Whatever has to be there before a machine can be. `there`: something is at this place already."""

    def stop(self, key: str) -> None:
        """Begins, or goes on with, the removal of everything of this node. Twice or unknown is fine."""


class OwnGroups:
    """One group for each node: deleting it leaves nothing. For somebody who is alone in a subscription."""

    def __init__(self, cloud: Cloud, account: Account) -> None:
        self._cloud = cloud
        self._account = account

    def place(self, key: str) -> Place:
        return Place(naming.group_name(self._account.workspace, key))

    def found(self) -> list[Holding]:
        vms = _by(self._cloud.vms(), lambda vm: vm.group)
        return [
            self._holding(group, marks, vms.get(group.name.lower()))
            for group in self._cloud.groups()
            if (marks := self._cloud.marks(group))
        ]

    def _holding(self, group: Group, marks: Marks, vm: Vm | None) -> Holding:
        of_set = (group.tags or {}).get(naming.FORM) == naming.SET
        place = Place(group.name, set=of_set, instance=vm.name if vm else "")
        return Holding(place, marks, vm, group.deleting)

    def prepare(self, place: Place, region: str, tags: Mapping[str, str], *, there: bool) -> None:
        if there and not self._is_ours(place, tags[naming.KEY]):
            raise NameTaken(f"the group {place.group} is there, and is not Stoker's", hint=TAKEN_HINT)
        self._cloud.make_group(place.group, region, tags)

    def stop(self, key: str) -> None:
        """A group that is there under the node's name may have been given to a later one since."""
        groups, named = self._cloud.groups(), self.place(key)
        mine = [Place(one.name) for one in groups if (marks := self._cloud.marks(one)) and marks.key == key]
        listed = named.group in {group.name for group in groups}
        for place in mine or ([named] if not listed and self._is_ours(named, key) else []):
            self._delete(place)

    def _is_ours(self, place: Place, key: str) -> bool:
        """A list may leave out what is there; a name alone does not make it ours."""
        found = self._cloud.group(place.group)
        marks = self._cloud.marks(found) if found else None
        return marks is not None and marks.key == key

    def _delete(self, place: Place) -> None:
        """What somebody has locked cannot be deleted, but it need not cost what a machine costs."""
        try:
            self._cloud.delete_group(place.group)
        except Locked:
            for vm in self._cloud.vms():
                if vm.group == place.group.lower():
                    self._cloud.switch_off(replace(place, instance=vm.name))
            raise


class SharedGroup:
    """All nodes of a login in the one group in which it has the role of a practitioner. Each thing of a node carries
    the node's tags or name; the record of its deployment is there before anything else."""

    def __init__(self, cloud: Cloud, account: Account) -> None:
        self._cloud = cloud
        self._account = account

    @cached_property
    def group(self) -> str:
        found = self._cloud.groups_with_role(self._account.practitioner)
        if not found:
            workspace = self._account.workspace
            raise NotAllowed(
                f"this login is not admitted to the workspace {workspace}: it has no group for its machines",
                hint="an administrator runs: stoker admin setup azure "
                f"--workspace {workspace} --practitioner {self._cloud.me()}",
            )
        own = [name for name in found if name.lower().endswith(self._cloud.me().lower())]
        return (own or found)[0]  # who is admitted both in person and with others works in person

    def place(self, key: str) -> Place:
        return naming.shared_place(self.group, key)

    def found(self) -> list[Holding]:
        here = [vm for vm in self._cloud.vms() if vm.group == self.group.lower()]
        vms = _by(here, lambda vm: (vm.set or vm.name).lower())
        parts = self._cloud.parts(self.group)
        known: dict[str, Marks] = {}
        # What its own tags say of a machine or a set comes last: they tell who has it now. Those of an instance are the
        # ones that its set had when it was made.
        first = [one.tags for one in (*self._cloud.deployments(self.group), *parts) if not _is_set(one)]
        last = [vm.tags for vm in here if not vm.set] + [one.tags for one in parts if _is_set(one)]
        for tags in (*first, *last):
            if marks := naming.marks(tags, self._account.workspace):
                known[marks.machine] = marks
        return [self._holding(self.place(machine), marks, vms, parts) for machine, marks in known.items()]

    def prepare(self, place: Place, region: str, tags: Mapping[str, str], *, there: bool) -> None:  # noqa: ARG002
        """The group and its network are an administrator's, and always there. Whether its port for ssh is open, and for
        whom, is this login's to say."""
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
            if marks and marks.key == key:  # lists may leave out what is there
                self._delete_machine(place)
        for one in mine:
            self._remove(one)

    def _holding(self, place: Place, marks: Marks, vms: Mapping[str, Vm], parts: list[Part]) -> Holding:
        vm = vms.get(place.name.lower())
        own = tuple(one for one in parts if place.owns(one.name.split("/", 1)[0]))
        sets = [one for one in own if _is_set(one)]
        place = replace(place, set=bool(sets), instance=vm.name if vm else "")
        going = sets[0].deleting if sets else vm is not None and vm.deleting
        return Holding(place, marks, vm, going, own)

    def _remove(self, one: Holding) -> None:
        """One step towards nothing: whoever sees something left calls again."""
        made = self._cloud.deployed(one.place)
        running = made is not None and made.running
        if running:
            self._cloud.cancel(one.place)
        left = [(part, part.kind.rsplit("/", 1)[1]) for part in one.parts or ()]
        kinds = {kind for _, kind in left}
        if one.vm or {"virtualMachines", _SET} & kinds:
            if not one.deleting:
                self._delete_machine(one.place)
            kinds |= {"virtualMachines"}
        for part in (part for part, kind in left if kind in _HELD_BY and _HELD_BY[kind] not in kinds):
            self._cloud.delete_part(part)
        if made and made.begun and not running:
            self._cloud.delete_deployment(one.place)

    def _delete_machine(self, place: Place) -> None:
        try:
            self._cloud.delete_machine(place)
        except Locked:
            self._cloud.switch_off(place)
            raise


def _is_set(part: Part) -> bool:
    return part.kind.rsplit("/", 1)[-1] == _SET


def _by(vms: Iterable[Vm], name: Callable[[Vm], str]) -> dict[str, Vm]:
    """Of two under a name, the one that stays: an instance may be restored while the one before it is deleted."""
    return {name(vm): vm for vm in sorted(vms, key=lambda vm: not vm.deleting)}


def ground(cloud: Cloud, account: Account) -> Ground:
    return SharedGroup(cloud, account) if account.practitioner else OwnGroups(cloud, account)
