"""Names and tags of our resources in Azure, how they are recognised, and a spot node as a scale set of one. Pure."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from stoker.errors import ProviderFailed

WORKSPACE, SERVER, KEY, LEASE = "stoker-workspace", "stoker-server", "stoker-node", "stoker-lease"
MACHINE = "stoker-machine"  # the key that the VM was created for; a later node may use it now
FORM, SET = "stoker-form", "scale-set"  # of a node that Azure restores
GANG = "stoker-gang"  # of a group that several nodes of one run share, with their network
VM, DEPLOYMENT = "node", "stoker"  # in a group of its own
_LABELS = {"run": "stoker-run", "owner": "stoker-owner"}
_FORM = "%Y-%m-%dT%H:%M:%SZ"
_LONGEST = 256  # characters of a tag's value
_KEPT = re.compile(r"[^a-z0-9-]+")


@dataclass(frozen=True, slots=True)
class Marks:
    """The tags of a group, or of a resource in a shared one. Empty: not set."""

    key: str
    machine: str
    server: str = ""
    owner: str = ""
    lease_until: datetime | None = None


@dataclass(frozen=True, slots=True)
class NodePlace:
    """Where a node is: in its own group, or in a shared one. `name` is that of its VM, or of the scale set whose only
    instance is its VM, and the prefix of the names of all its resources."""

    group: str
    name: str = VM
    deployment: str = DEPLOYMENT
    shared: bool = False
    set: bool = False
    instance: str = ""  # the name of the VM, where Azure chose it
    gang: bool = False  # the group is that of its gang, with a network of theirs
    near: bool = False  # the group has a proximity placement group for gangs

    def group_id(self, subscription: str) -> str:
        return group_id(subscription, self.group)

    def inside(self, subscription: str, kind: str) -> str:
        """The id of the node's resource of this kind."""
        return f"{self.group_id(subscription)}/providers/{kind}/{self.name}"

    @property
    def machine(self) -> str:
        """The current name of its VM."""
        return self.instance or self.name

    def vm_id(self, subscription: str) -> str:
        return self.inside(subscription, "Microsoft.Compute/virtualMachines")

    def set_id(self, subscription: str) -> str:
        return self.inside(subscription, "Microsoft.Compute/virtualMachineScaleSets")

    def node_id(self, subscription: str) -> str:
        """What to delete to remove the node from a shared group."""
        return self.set_id(subscription) if self.set else self.vm_id(subscription)

    def tagged_id(self, subscription: str) -> str:
        """The resource whose tags change: the node's own group, or else its VM or scale set."""
        return self.node_id(subscription) if self.shared else self.group_id(subscription)

    def owns(self, name: str) -> bool:
        """Whether a resource of the group, by its name, belongs to this node."""
        return not self.shared or name == self.name or name.startswith(f"{self.name}_")


def shared_place(group: str, machine: str) -> NodePlace:
    """Of the VM that was created for this key. Azure allows 64 characters."""
    name = f"stoker-{_KEPT.sub('-', machine.lower())}"
    if len(name) > 60 or machine != machine.lower() or _KEPT.search(machine):
        name = f"{name[:45]}-{hashlib.sha256(machine.encode()).hexdigest()[:12]}"
    return NodePlace(group, name, name, shared=True)


def gang_place(group: str, machine: str) -> NodePlace:
    return replace(shared_place(group, machine), gang=True, near=True)


def gang_group(workspace: str, gang: str, number: int) -> str:
    """The name of a gang's group. While an earlier one is being deleted, the next nodes get another."""
    return group_name(workspace, f"{gang}-gang" if number == 1 else f"{gang}-gang-{number}")


def group_name(workspace: str, key: str) -> str:
    """One group contains everything of a node, so that deleting it deletes all. At most 90 characters."""
    name = f"stoker-{_KEPT.sub('-', workspace.lower())}-{_KEPT.sub('-', key.lower())}"
    if len(name) <= 80 and key == key.lower() and not _KEPT.search(key):
        return name
    return f"{name[:60]}-{hashlib.sha256(f'{workspace}/{key}'.encode()).hexdigest()[:12]}"


def group_id(subscription: str, group: str) -> str:
    return f"/subscriptions/{subscription}/resourceGroups/{group}"


def tags(workspace: str, server: str, key: str, labels: Mapping[str, str]) -> dict[str, str]:
    """Tags that never change during the life of a node, and so may be on all of its resources."""
    named = {tag: labels.get(word, "")[:_LONGEST] for word, tag in _LABELS.items()}
    return {WORKSPACE: workspace, SERVER: server, KEY: key, MACHINE: key, **{k: v for k, v in named.items() if v}}


def lease_tag(until: datetime) -> dict[str, str]:
    return {LEASE: until.astimezone(UTC).strftime(_FORM)}


def marks(found: Mapping[str, str] | None, workspace: str) -> Marks | None:
    """None where the tags are not ours, or belong to another workspace."""
    if not found or found.get(WORKSPACE) != workspace or not found.get(KEY):
        return None
    key = found[KEY]
    owner, until = found.get(_LABELS["owner"], ""), _moment(found.get(LEASE, ""))
    return Marks(key, found.get(MACHINE, key), found.get(SERVER, ""), owner, until)


def _moment(text: str) -> datetime | None:
    """None where it is not a timestamp: a lease that cannot be parsed does not count."""
    try:
        return datetime.strptime(text, _FORM).replace(tzinfo=UTC)
    except ValueError:
        return None


SETS, IDENTITIES = "Microsoft.Compute/virtualMachineScaleSets", "Microsoft.ManagedIdentity/userAssignedIdentities"
IDENTITY_API = "2023-01-31"
_PREFIX = "node"  # Azure appends six characters to form the host name
_LEAST_S = 300.0
_OF_SETS = re.compile(r"scale ?sets?|orchestration|spot ?restore|user ?assigned|DisallowedByPolicy", re.IGNORECASE)

Json = dict[str, Any]


def scale_set(name: str, profile: Mapping[str, Any], size: str, identity: str, restore_s: float) -> Json:
    """`profile` is that of a plain VM; Azure chooses the names of its disk, interface and address."""
    policy = {"enabled": True, "restoreTimeout": duration(restore_s)}
    return {
        "type": SETS,
        "name": name,
        "sku": {"name": size, "capacity": 1},
        # Of this node alone. Instances of Flexible sets do not support a system-assigned identity.
        "identity": {"type": "UserAssigned", "userAssignedIdentities": {identity: {}}},
        "properties": {
            "orchestrationMode": "Flexible",
            "platformFaultDomainCount": 1,
            "singlePlacementGroup": False,
            "spotRestorePolicy": policy,
            "virtualMachineProfile": dict(profile),
        },
    }


def host(profile: Mapping[str, Any]) -> Json:
    """The `osProfile` of a VM for the instances of a set."""
    kept = {word: value for word, value in profile.items() if word != "computerName"}
    return {**kept, "computerNamePrefix": _PREFIX}


def interface(name: str, properties: Mapping[str, Any], *, public: bool) -> Json:
    """The `networkProfile` that creates an interface like this one. Without a public address, an instance of a Flexible
    set has no outbound access, unless its subnet provides it. Inbound traffic requires a firewall rule."""
    (address,) = properties["ipConfigurations"]
    own = {"name": f"{name}_ip", "sku": {"name": "Standard"}, "properties": {"deleteOption": "Delete"}}
    inner = {"subnet": address["properties"]["subnet"], "primary": True}
    inner |= {"publicIPAddressConfiguration": own} if public else {}
    card = {
        **properties,
        "primary": True,
        "deleteOption": "Delete",
        "ipConfigurations": [{"name": address["name"], "properties": inner}],
    }
    return {
        "networkApiVersion": "2022-11-01",  # the newer of the two documented versions
        "networkInterfaceConfigurations": [{"name": f"{name}_nic", "properties": card}],
    }


def identity(name: str) -> Json:
    return {"type": IDENTITIES, "apiVersion": IDENTITY_API, "name": name}


def duration(seconds: float) -> str:
    """In ISO 8601, rounded up to whole minutes, with a minimum because a restore itself takes minutes."""
    return f"PT{math.ceil(max(seconds, _LEAST_S) / 60)}M"


def refuses_set(error: ProviderFailed | None) -> bool:
    """Whether Azure refused the scale set itself, or its identity, where it might accept a plain VM. A lack of
    capacity, budget, quota or rights has errors of its own."""
    # The text before the colon names the action, and may contain names that a user chose.
    return type(error) is ProviderFailed and bool(_OF_SETS.search(error.message.partition(": ")[2]))
