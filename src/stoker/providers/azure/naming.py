"""What things of ours are called in Azure, and how they are known again: names and tags. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

WORKSPACE, SERVER, KEY, LEASE = "stoker-workspace", "stoker-server", "stoker-node", "stoker-lease"
MACHINE = "stoker-machine"  # the key that the machine was made for; the node on it may be a later one
FORM, SET = "stoker-form", "scale-set"  # of a node that Azure restores
VM, DEPLOYMENT = "node", "stoker"  # in a group of its own
_LABELS = {"run": "stoker-run", "owner": "stoker-owner"}
_FORM = "%Y-%m-%dT%H:%M:%SZ"
_LONGEST = 256  # of a tag's value
_KEPT = re.compile(r"[^a-z0-9-]+")


@dataclass(frozen=True, slots=True)
class Marks:
    """What the tags of a group, or of something in a shared one, say. Empty: nothing."""

    key: str
    machine: str
    server: str = ""
    owner: str = ""
    lease_until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """Where a node is: in a group of its own, or among others in a shared one. `name` is that of its machine, or of the
    scale set that its machine is the only instance of, and all that belongs to it has a name that begins so."""

    group: str
    name: str = VM
    deployment: str = DEPLOYMENT
    shared: bool = False
    set: bool = False
    instance: str = ""  # the name of the machine, where Azure gave it one

    def group_id(self, subscription: str) -> str:
        return group_id(subscription, self.group)

    def inside(self, subscription: str, kind: str) -> str:
        """The id of the node's resource of this kind."""
        return f"{self.group_id(subscription)}/providers/{kind}/{self.name}"

    @property
    def machine(self) -> str:
        """What its VM is called now."""
        return self.instance or self.name

    def vm_id(self, subscription: str) -> str:
        return self.inside(subscription, "Microsoft.Compute/virtualMachines")

    def set_id(self, subscription: str) -> str:
        return self.inside(subscription, "Microsoft.Compute/virtualMachineScaleSets")

    def node_id(self, subscription: str) -> str:
        """What is deleted to remove the node from a shared group."""
        return self.set_id(subscription) if self.set else self.vm_id(subscription)

    def tagged_id(self, subscription: str) -> str:
        """What carries the tags that change: the group that goes with the node, or else its machine or scale set."""
        return self.node_id(subscription) if self.shared else self.group_id(subscription)

    def owns(self, name: str) -> bool:
        """Whether a resource of the group, by its name, belongs to this node."""
        return not self.shared or name == self.name or name.startswith(f"{self.name}_")


def shared_place(group: str, machine: str) -> Place:
    """Of the machine that was made for this key. Azure allows 64 characters."""
    name = f"stoker-{_KEPT.sub('-', machine.lower())}"
    if len(name) > 60 or machine != machine.lower() or _KEPT.search(machine):
        name = f"{name[:45]}-{hashlib.sha256(machine.encode()).hexdigest()[:12]}"
    return Place(group, name, name, shared=True)


def group_name(workspace: str, key: str) -> str:
    """One group owns everything of a node, so that deleting it deletes all. At most 90 characters."""
    name = f"stoker-{_KEPT.sub('-', workspace.lower())}-{_KEPT.sub('-', key.lower())}"
    if len(name) <= 80 and key == key.lower() and not _KEPT.search(key):
        return name
    return f"{name[:60]}-{hashlib.sha256(f'{workspace}/{key}'.encode()).hexdigest()[:12]}"


def group_id(subscription: str, group: str) -> str:
    return f"/subscriptions/{subscription}/resourceGroups/{group}"


def tags(workspace: str, server: str, key: str, labels: Mapping[str, str]) -> dict[str, str]:
    """What never changes while a node is there, and so may be on everything of it."""
    named = {tag: labels.get(word, "")[:_LONGEST] for word, tag in _LABELS.items()}
    return {WORKSPACE: workspace, SERVER: server, KEY: key, MACHINE: key, **{k: v for k, v in named.items() if v}}


def lease_tag(until: datetime) -> dict[str, str]:
    return {LEASE: until.astimezone(UTC).strftime(_FORM)}


def marks(found: Mapping[str, str] | None, workspace: str) -> Marks | None:
    """None where the tags are not ours, or of another workspace."""
    if not found or found.get(WORKSPACE) != workspace or not found.get(KEY):
        return None
    key = found[KEY]
    owner, until = found.get(_LABELS["owner"], ""), _moment(found.get(LEASE, ""))
    return Marks(key, found.get(MACHINE, key), found.get(SERVER, ""), owner, until)


def _moment(text: str) -> datetime | None:
    """None where nobody could have written it: a lease that cannot be read is none."""
    try:
        return datetime.strptime(text, _FORM).replace(tzinfo=UTC)
    except ValueError:
        return None
