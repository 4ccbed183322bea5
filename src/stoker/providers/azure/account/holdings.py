"""Nodes that share a resource group: found by their tags and names, and removed one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from stoker.errors import Locked
from stoker.providers.azure import naming
from stoker.providers.azure.cloud import AzureCloud, GroupMember, Vm
from stoker.providers.azure.naming import Marks, NodePlace

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
