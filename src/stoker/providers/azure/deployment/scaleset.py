"""A spot node as a scale set of one, which Azure restores after an eviction: its resources, and refusals of them. Pure.

Nobody on the machine needs the right to make anything for that: a script that takes the machine's identity cannot rent
machines with it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from stoker.errors import ProviderFailed

SETS, IDENTITIES = "Microsoft.Compute/virtualMachineScaleSets", "Microsoft.ManagedIdentity/userAssignedIdentities"
IDENTITY_API = "2023-01-31"
_PREFIX = "node"  # Azure adds six characters for the name of the host
_LEAST_S = 300.0
_OF_SETS = re.compile(r"scale ?sets?|orchestration|spot ?restore|user ?assigned|DisallowedByPolicy", re.IGNORECASE)

Json = dict[str, Any]


def scale_set(name: str, profile: Mapping[str, Any], size: str, identity: str, restore_s: float) -> Json:
    """`profile` is what the VM of a node would be; its disk, interface and address get names of Azure's making."""
    policy = {"enabled": True, "restoreTimeout": duration(restore_s)}
    return {
        "type": SETS,
        "name": name,
        "sku": {"name": size, "capacity": 1},
        # Of this node alone. Instances of Flexible sets have no identity that goes with the machine.
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
    """The `networkProfile` that makes an interface like this one. Without a public address an instance of a Flexible
    set reaches nothing, unless its subnet has another way out. Nothing comes in by it unless a firewall's rule says
    so."""
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
        "networkApiVersion": "2022-11-01",  # of the two that are documented, the newer
        "networkInterfaceConfigurations": [{"name": f"{name}_nic", "properties": card}],
    }


def identity(name: str) -> Json:
    return {"type": IDENTITIES, "apiVersion": IDENTITY_API, "name": name}


def duration(seconds: float) -> str:
    """In ISO 8601, in whole minutes; a restore that lasts minutes needs some."""
    return f"PT{math.ceil(max(seconds, _LEAST_S) / 60)}M"


def refuses_set(error: ProviderFailed | None) -> bool:
    """Whether Azure refused the set itself, or its identity, where it might make a plain VM: not for want of machines,
    money, quota or rights, which have errors of their own."""
    # What was being done comes first, and names what a user named.
    return type(error) is ProviderFailed and bool(_OF_SETS.search(error.message.partition(": ")[2]))
