"""Whether a VM is available: size, location, price, quota, and the weather."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from stoker.twin.arm import groups
from stoker.twin.arm.requests.ask import Ask, needed
from stoker.twin.arm.vms import rules
from stoker.twin.market import catalog, prices, quota
from stoker.twin.refusal import allocation_failed, conflict, invalid, sku_not_available
from stoker.twin.state import CloudState
from stoker.twin.time import weather

_SPOT_SINCE = "2019-03-01"


def admit(cloud: CloudState, ask: Ask) -> catalog.TwinSize:
    """The size, if every immediate check passes."""
    wanted = str(needed(ask.body, "properties", "hardwareProfile", "vmSize"))
    needed(ask.body, "properties", "storageProfile")
    needed(ask.body, "properties", "networkProfile")
    region = groups.region_of(cloud, ask)
    if wanted.lower() not in catalog.SIZES:
        raise invalid(
            f"The value {wanted} provided for the VM size is not valid. The valid sizes in the current region are: "
            f"{', '.join(size.name for size in catalog.sizes_in(region))}."
        )
    size = catalog.size_in(wanted, region)
    if size is None or size.closed or size.retired or f"{region}/{wanted}".lower() in cloud.restrictions:
        raise sku_not_available(wanted, region)
    given = ask.body["properties"]
    spot = str(given.get("priority", "")).lower() == "spot"
    _check_zones(ask, size, region)
    rules.check(cloud, ask, size, region)
    _check_spot(cloud, ask, given, size, region)
    quota.check(cloud, region, size, spot)
    return size


def _check_zones(ask: Ask, size: catalog.TwinSize, region: str) -> None:
    for zone in ask.body.get("zones") or ():
        if zone not in catalog.REGIONS[region].zones:
            raise invalid(
                f"The zone(s) '{zone}' for resource '{ask.target.kind}/{ask.target.name}' is not supported in location "
                f"'{region}'.",
                "InvalidAvailabilityZone",
            )
        if zone in catalog.withheld_zones(size, region):
            raise sku_not_available(size.name, region)


def _check_spot(cloud: CloudState, ask: Ask, given: Mapping[str, Any], size: catalog.TwinSize, region: str) -> None:
    if str(given.get("priority", "")).lower() != "spot":
        if given.get("evictionPolicy"):
            raise conflict(
                "Eviction policy can be set only on Azure Spot Virtual Machines.",
                "EvictionPolicyCanBeSetOnlyOnAzureSpotVirtualMachines",
            )
        if (given.get("billingProfile") or {}).get("maxPrice") is not None:
            raise conflict(
                "Max price is supported only for Azure Spot VMs.", "MaxPriceIsSupportedOnlyForAzureSpotVirtualMachines"
            )
        return
    if ask.version < _SPOT_SINCE:
        message = f"Azure Spot is not supported for this API version. Please use {_SPOT_SINCE} or later."
        raise conflict(message, "AzureSpotIsNotSupportedForThisAPIVersion")
    check_price(cloud, given, size, region, ask.now, "Create VM")


def check_price(
    cloud: CloudState, given: Mapping[str, Any], size: catalog.TwinSize, region: str, now: float, operation: str
) -> None:
    most = float((given.get("billingProfile") or {}).get("maxPrice", -1))
    price = prices.spot_usd(cloud, size, region, now)
    if most != -1 and most < price:
        raise conflict(
            f"Unable to perform operation '{operation}' since the provided max price '{most} USD' is lower than the "
            f"current spot price '{price} USD' for Azure Spot VM size '{size.name}'.",
            "SpotPriceGreaterThanProvidedMaxPrice",
        )


def allocation_error(
    cloud: CloudState, ask: Ask, size: catalog.TwinSize, region: str
) -> tuple[CloudState, Mapping[str, Any]]:
    """A failed allocation: ordered by a test, or caused by the weather."""
    fault, left = weather.take(cloud.faults, ("allocation",), ask.method, ask.path)
    if fault is None and not cloud.weather.allocation_fails(ask.number):
        return cloud, {}
    return replace(cloud, faults=left), allocation_failed(size.name, region).body()
