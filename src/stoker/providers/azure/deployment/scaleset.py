"""A spot node as a scale set of one, which Azure restores after an eviction: its resources and their refusals. Pure.

No process on the VM needs the right to create anything for that: a script that obtains the VM's identity cannot create
VMs with it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from stoker.errors import ProviderFailed

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
