"""Rules for the body of a scale set, and the VM that its profile describes.

Codes and messages are Azure's where known; their sources are in the table of docs/concepts/twin.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from stoker.twin.arm.requests.ask import Ask, needed
from stoker.twin.arm.vms import vms
from stoker.twin.arm.vms.rules import check_described, check_place
from stoker.twin.refusal import conflict, invalid
from stoker.twin.state import Resource

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,62}[A-Za-z0-9_])?$")
_DURATION = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?)?$")
_MOST = 1000
_NETWORK_SINCE = "2020-11-01"


def checked(ask: Ask) -> int:
    """The requested capacity, if Azure would accept the body."""
    if not _NAME.match(ask.target.name):
        raise invalid(f"The value '{ask.target.name}' of parameter vmScaleSetName is not valid: 1 to 64 characters.")
    given = needed(ask.body, "properties")
    mode = str(given.get("orchestrationMode", "Uniform"))
    if mode != "Flexible":
        raise invalid(f"The twin has no scale sets with {mode} orchestration; it has those with 'Flexible'.")
    check_place(given, {"proximityPlacementGroup": "scale sets in proximity placement groups"})
    profile = needed(given, "virtualMachineProfile")
    needed(ask.body, "sku", "name")
    needed(given, "platformFaultDomainCount")
    _check_identity(ask.body.get("identity") or {})
    _check_network(needed(profile, "networkProfile"))
    needed(profile, "osProfile", "computerNamePrefix")
    for one in (profile.get("extensionProfile") or {}).get("extensions") or ():
        needed(one, "name")
    _check_restore(given.get("spotRestorePolicy") or {}, profile)
    return capacity(ask.body["sku"])


def check_change(set_: Resource, given: Mapping[str, Any]) -> None:
    mode = given.get("orchestrationMode", set_.properties["orchestrationMode"])
    if mode != set_.properties["orchestrationMode"]:
        raise conflict("Changing property 'orchestrationMode' is not allowed.", "PropertyChangeNotAllowed")
    profile = given.get("virtualMachineProfile") or {}
    before = set_.properties["virtualMachineProfile"]
    for word in ("priority", "evictionPolicy"):
        if profile.get(word, before.get(word)) != before.get(word):
            raise conflict(f"Changing property '{word}' is not allowed.", "PropertyChangeNotAllowed")
    _check_restore(given.get("spotRestorePolicy") or {}, {**before, **profile})


def capacity(sku: Mapping[str, Any]) -> int:
    wanted = sku.get("capacity", 0)
    if not isinstance(wanted, int) or isinstance(wanted, bool) or not 0 <= wanted <= _MOST:
        raise invalid(f"The value '{wanted}' of parameter sku.capacity is not valid: 0 to {_MOST} are.")
    return wanted


def _check_identity(identity: Mapping[str, Any]) -> None:
    if "SystemAssigned" in str(identity.get("type", "")):
        raise invalid(
            "System assigned identity is not supported for Virtual Machine Scale Sets with Flexible Orchestration "
            "Mode. Use a user assigned identity.",
            "BadRequest",
        )


def _check_network(profile: Mapping[str, Any]) -> None:
    version = str(needed(profile, "networkApiVersion"))
    if version < _NETWORK_SINCE:
        raise invalid(f"The value '{version}' of parameter networkApiVersion is not valid: {_NETWORK_SINCE} or later.")
    if not profile.get("networkInterfaceConfigurations"):
        raise invalid("Virtual machine must have at least one network interface.")
    for card in profile["networkInterfaceConfigurations"]:
        check_described(card)


def _check_restore(policy: Mapping[str, Any], profile: Mapping[str, Any]) -> None:
    if not policy.get("enabled"):
        return
    if str(profile.get("priority", "")).lower() != "spot":
        raise invalid("Spot restore policy can be set only on Azure Spot Virtual Machine Scale Sets.")
    if str(profile.get("evictionPolicy", "")).lower() != "delete":
        raise invalid("The twin restores instances whose evictionPolicy is 'Delete', and none that are deallocated.")
    if restore_s(policy) <= 0:
        raise invalid(f"The value '{policy.get('restoreTimeout')}' of parameter restoreTimeout is not a duration.")


def restore_s(policy: Mapping[str, Any]) -> float:
    """How long Azure tries to restore an evicted instance; 0 where it is not an ISO 8601 duration."""
    found = _DURATION.match(str(policy.get("restoreTimeout", "PT1H")))
    if not found:
        return 0.0
    days, hours, minutes, seconds = (int(one or 0) for one in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60.0 + seconds


def profile(set_: Resource) -> dict[str, Any]:
    """Including its secrets."""
    return vms.merged(set_.properties["virtualMachineProfile"], set_.secret)


def vm_body(set_: Resource, word: str) -> dict[str, Any]:
    """The VM of an instance. `word` is its own part of all names."""
    given = profile(set_)
    system = dict(given.pop("osProfile"))
    system["computerName"] = f"{system.pop('computerNamePrefix')}{word[:6]}"
    network = given.pop("networkProfile")
    given.pop("extensionProfile", None)
    cards = [_named(one, word) for one in network["networkInterfaceConfigurations"]]
    kept = {name: set_.body[name] for name in ("tags", "zones", "identity") if name in set_.body}
    return {
        "location": set_.region,
        **kept,
        "properties": {
            **given,
            "hardwareProfile": {"vmSize": set_.body["sku"]["name"]},
            "osProfile": system,
            "networkProfile": {**network, "networkInterfaceConfigurations": cards},
            "virtualMachineScaleSet": {"id": set_.id},
        },
    }


def _named(card: Mapping[str, Any], word: str) -> dict[str, Any]:
    properties = dict(card.get("properties") or {})
    properties["ipConfigurations"] = [_address_named(one, word) for one in properties.get("ipConfigurations") or ()]
    return {"name": f"{card['name']}-{word}", "properties": properties}


def _address_named(one: Mapping[str, Any], word: str) -> dict[str, Any]:
    properties = dict(one.get("properties") or {})
    if public := properties.get("publicIPAddressConfiguration"):
        properties["publicIPAddressConfiguration"] = {**public, "name": f"{public['name']}-{word}"}
    return {**one, "properties": properties}
