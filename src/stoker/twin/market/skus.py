"""Sizes as the list of resource SKUs shows them: capabilities, zones, and restrictions of this subscription."""

from __future__ import annotations

from typing import Any

from stoker.twin.market import catalog
from stoker.twin.market.sizes import Size

_NOT_YOURS = "NotAvailableForSubscription"


def sku(size: Size, region: str, *, restricted: bool) -> dict[str, Any]:
    """`restricted`: it was ordered by hand that nobody can have it there."""
    return {
        "resourceType": "virtualMachines",
        "name": size.name,
        "tier": size.tier,
        "size": size.name.partition("_")[2],
        "family": size.family,
        "locations": [region],
        "locationInfo": [{"location": region, "zones": list(catalog.REGIONS[region].zones), "zoneDetails": []}],
        "capabilities": [{"name": name, "value": str(value)} for name, value in _capabilities(size).items()],
        "restrictions": _restrictions(size, region, restricted or size.closed),
    }


def disk_sku(name: str, tier: str, size: str, region: str) -> dict[str, Any]:
    """The list has other kinds beside sizes, and some of them have names of sizes."""
    place = {"location": region, "zones": list(catalog.REGIONS[region].zones), "zoneDetails": []}
    told = {"resourceType": "disks", "name": name, "tier": tier, "size": size, "locations": [region]}
    return {**told, "locationInfo": [place], "capabilities": [], "restrictions": []}


def host_sku(region: str) -> dict[str, Any]:
    place = {"location": region, "zones": list(catalog.REGIONS[region].zones), "zoneDetails": []}
    told = {"resourceType": "hostGroups/hosts", "name": "DSv5-Type1", "tier": "Standard", "locations": [region]}
    return {**told, "locationInfo": [place], "capabilities": [{"name": "vCPUs", "value": "119"}], "restrictions": []}


def _capabilities(size: Size) -> dict[str, object]:
    """What is not so may be missing instead of `False`, as in Azure."""
    facts = {
        "MaxResourceVolumeMB": 0,
        "OSVhdSizeMB": 1_047_552,
        "vCPUs": size.cpus,
        "MemoryPreservingMaintenanceSupported": not size.gpus,
        "HyperVGenerations": size.generations,
        "DiskControllerTypes": size.controllers,
        "MemoryGB": int(size.memory_gb) if size.memory_gb == int(size.memory_gb) else size.memory_gb,
        "MaxDataDiskCount": 8,
        "CpuArchitectureType": size.architecture,
        "LowPriorityCapable": size.spot,
        "PremiumIO": size.premium,
        "VMDeploymentTypes": "IaaS",
        "vCPUsAvailable": size.usable_cpus or size.cpus,
        "vCPUsPerCore": 1 if size.architecture == "Arm64" else 2,
        "EphemeralOSDiskSupported": False,
        "EncryptionAtHostSupported": size.premium,
        "CapacityReservationSupported": size.premium,
        "AcceleratedNetworkingEnabled": size.accelerated,
        "RdmaEnabled": "r_" in size.name,
        "MaxNetworkInterfaces": 2,
    }
    more: dict[str, object] = {"GPUs": size.gpus} if size.gpus else {}
    more |= {"ConfidentialComputingType": size.confidential} if size.confidential else {}
    return {**facts, **more}


def _restrictions(size: Size, region: str, closed: bool) -> list[dict[str, Any]]:
    zones = list(catalog.REGIONS[region].zones)
    found = []
    if closed:
        found.append(_restriction("Location", region, {"locations": [region]}))
    if some := zones if closed else list(catalog.withheld_zones(size, region)):
        found.append(_restriction("Zone", region, {"locations": [region], "zones": some}))
    return found


def _restriction(kind: str, region: str, info: dict[str, Any]) -> dict[str, Any]:
    return {"type": kind, "values": [region], "restrictionInfo": info, "reasonCode": _NOT_YOURS}
