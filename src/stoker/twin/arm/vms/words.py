"""Enum values that Azure accepts in the body of a VM, and required fields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stoker.twin.arm.requests.ask import needed
from stoker.twin.refusal import invalid

_DELETE = ("Delete", "Detach")
_SYSTEM = ("FromImage", "Attach", "Empty", "Copy", "Restore")
_SECURITY = ("TrustedLaunch", "ConfidentialVM", "Standard")
_IDENTITIES = ("SystemAssigned", "UserAssigned", "SystemAssigned, UserAssigned", "SystemAssigned,UserAssigned", "None")
_MOST_LUN = 63


def check(body: Mapping[str, Any]) -> None:
    given = body["properties"]
    for where, word, known in _fields(body):
        if word is not None and str(word).lower() not in [one.lower() for one in known]:
            raise invalid(f"The value '{word}' of parameter {where} is not valid: {', '.join(known)} are.")
    for disk in given["storageProfile"].get("dataDisks") or ():
        _check_data_disk(disk)
    if given["networkProfile"].get("networkInterfaceConfigurations"):
        needed(given["networkProfile"], "networkApiVersion")


def _check_data_disk(disk: Mapping[str, Any]) -> None:
    lun = disk.get("lun")
    if lun is None or not 0 <= int(lun) <= _MOST_LUN:
        raise invalid(f"The value '{lun}' of parameter dataDisk.lun is not valid: 0 to {_MOST_LUN} are.")
    if str(needed(disk, "createOption")).lower() == "empty":
        needed(disk, "diskSizeGB")


def _fields(body: Mapping[str, Any]) -> Iterator[tuple[str, Any, tuple[str, ...]]]:
    """Each with its path, its value, and the allowed values."""
    given = body["properties"]
    system = given["storageProfile"].get("osDisk") or {}
    if system:
        yield "osDisk.createOption", needed(system, "createOption"), _SYSTEM
        yield "osDisk.deleteOption", system.get("deleteOption"), _DELETE
    for disk in given["storageProfile"].get("dataDisks") or ():
        yield "dataDisk.createOption", disk.get("createOption"), _SYSTEM
        yield "dataDisk.deleteOption", disk.get("deleteOption"), _DELETE
    for word in ("networkInterfaces", "networkInterfaceConfigurations"):
        for card in given["networkProfile"].get(word) or ():
            yield f"{word}.deleteOption", (card.get("properties") or {}).get("deleteOption"), _DELETE
    yield "securityProfile.securityType", (given.get("securityProfile") or {}).get("securityType"), _SECURITY
    yield "identity.type", (body.get("identity") or {}).get("type"), _IDENTITIES
