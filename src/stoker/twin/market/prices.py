"""What a subscription pays and may use: prices at a moment, the bill, and quotas of cores and public addresses."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from stoker.twin.market import catalog
from stoker.twin.market.catalog import TwinSize
from stoker.twin.refusal import conflict, invalid
from stoker.twin.state import Charge, CloudState, Resource
from stoker.twin.time.weather import draw

STEP_S = 300.0  # how long a spot price stays the same
_MONTH_S = 730 * 3600.0


def spot_usd(cloud: CloudState, size: catalog.TwinSize, region: str, now: float) -> float:
    """Per hour. A price ordered by a test goes before the weather's."""
    orders = [
        order
        for order in cloud.prices
        if order.at <= now and (order.size.lower(), order.region) == (size.name.lower(), region)
    ]
    if orders and (ordered := orders[-1].usd_per_hour) is not None:
        return ordered
    usual = catalog.on_demand_usd(size, region) * size.spot_share
    return round(usual * (1 + cloud.weather.price_swing * _swing(cloud, size, region, now)), 6)


def _swing(cloud: CloudState, size: catalog.TwinSize, region: str, now: float) -> float:
    """Between -1 and 1: a slow and a fast wave per region and size, and some noise, as real prices seem to have."""
    step = int(now // STEP_S)
    key = (cloud.weather.seed, size.name, region)
    day = math.sin(2 * math.pi * (step * STEP_S / 86_400 + draw("day", *key)))
    hours = math.sin(2 * math.pi * (step * STEP_S / (7_200 + 7_200 * draw("length", *key)) + draw("hours", *key)))
    return 0.5 * day + 0.3 * hours + 0.2 * (2 * draw("noise", *key, step) - 1)


def usd_per_hour(cloud: CloudState, charge: Charge, now: float) -> float:
    """The current price of the charged resource."""
    if charge.meter in ("disk", "standard disk"):
        usd = catalog.disk_usd_per_month(float(charge.size), premium=charge.meter == "disk")
        return usd * 3600 / _MONTH_S
    if charge.meter == "address":
        return catalog.ADDRESS_USD_PER_HOUR
    size = catalog.SIZES[charge.size.lower()]
    if charge.meter == "spot":
        return spot_usd(cloud, size, charge.region, now)
    return catalog.on_demand_usd(size, charge.region)


def usd(cloud: CloudState, charge: Charge, now: float) -> float:
    """The amount of a charge, by the second, until now or its end."""
    until = now if charge.until is None else charge.until
    if charge.meter != "spot":
        return (until - charge.since) / 3600 * usd_per_hour(cloud, charge, now)
    total = 0.0
    for begin, end in _stretches(cloud, charge.since, until):
        total += (end - begin) / 3600 * usd_per_hour(cloud, charge, begin)
    return total


def _stretches(cloud: CloudState, since: float, until: float) -> list[tuple[float, float]]:
    """Intervals of one price each."""
    steps = range(int(since // STEP_S) + 1, int(until // STEP_S) + 1)
    changes = {step * STEP_S for step in steps} | {order.at for order in cloud.prices if since < order.at < until}
    edges = [since, *sorted(changes), until]
    return [(begin, end) for begin, end in pairwise(edges) if end > begin]


# The twin's own bill: when each resource was billed, and the amount.


def begin(cloud: CloudState, charge: Charge) -> CloudState:
    """A resource is billed from now on. No change where it is already."""
    if any(one.until is None and one.resource.lower() == charge.resource.lower() for one in cloud.charges):
        return cloud
    return replace(cloud, charges=(*cloud.charges, charge))


def end(cloud: CloudState, resource: str, now: float) -> CloudState:
    charges = tuple(
        replace(one, until=now) if one.until is None and one.resource.lower() == resource.lower() else one
        for one in cloud.charges
    )
    return replace(cloud, charges=charges)


def bill(cloud: CloudState, now: float) -> dict[str, Any]:
    """Every charge with its amount, the total, and the current price per hour."""
    lines = [
        {
            "resource": one.resource,
            "meter": one.meter,
            "size": one.size,
            "region": one.region,
            "since_s": round(one.since, 3),
            "until_s": None if one.until is None else round(one.until, 3),
            "usd": round(usd(cloud, one, now), 8),
        }
        for one in cloud.charges
    ]
    running = sum(usd_per_hour(cloud, one, now) for one in cloud.charges if one.until is None)
    total = round(sum(usd(cloud, one, now) for one in cloud.charges), 8)
    return {"now_s": round(now, 3), "usd": total, "usd_per_hour": round(running, 6), "charges": lines}


TOTAL = "cores"
SPOT = "lowPriorityCores"
MACHINES = "virtualMachines"
VMS = "Microsoft.Compute/virtualMachines"


def limit(cloud: CloudState, region: str, name: str) -> int:
    ordered = cloud.quotas.get(f"{region}/{name}".lower())
    if ordered is not None:
        return ordered
    if name in (TOTAL, SPOT, MACHINES):
        return {TOTAL: catalog.CORES_PER_REGION, SPOT: catalog.SPOT_CORES, MACHINES: 25_000}[name]
    gpu = any(size.gpus for size in catalog.SIZES.values() if size.family == name)
    return catalog.CORES_PER_GPU_FAMILY if gpu else catalog.CORES_PER_FAMILY


def used(cloud: CloudState, region: str, name: str) -> int:
    """Deallocated VMs count as well, as in Azure."""
    vms = [vm for vm in cloud.all(VMS) if vm.region == region and not _failed(vm)]
    if name == MACHINES:
        return len(vms)
    return sum(size_of(vm).cpus for vm in vms if name in counters(size_of(vm), is_spot(vm)))


def check_quota(cloud: CloudState, region: str, size: TwinSize, spot: bool) -> None:
    """Refused where this many more cores would exceed a limit."""
    for name in counters(size, spot):
        allowed, taken = limit(cloud, region, name), used(cloud, region, name)
        if taken + size.cpus <= allowed:
            continue
        title = {TOTAL: "Total Regional Cores", SPOT: "LowPriorityCores"}.get(name, f"{name} Cores")
        raise conflict(
            f"Operation could not be completed as it results in exceeding approved {title} quota. Additional details "
            f"- Deployment Model: Resource Manager, Location: {region}, Current Limit: {allowed}, "
            f"Current Usage: {taken}, Additional Required: {size.cpus}, (Minimum) New Limit Required: "
            f"{taken + size.cpus}. Submit a request for Quota increase at https://aka.ms/ProdportalCRP by specifying "
            "parameters listed in the 'Details' section for deployment to succeed. Please read more about quota limits "
            "at https://docs.microsoft.com/azure/azure-supportability/per-vm-quota-requests",
            "OperationNotAllowed",
        )


def quota_usages(cloud: CloudState, region: str) -> list[dict[str, Any]]:
    families = sorted({size.family for size in catalog.sizes_in(region)})
    titles = {TOTAL: "Total Regional vCPUs", SPOT: "Total Regional Low-priority vCPUs", MACHINES: "Virtual Machines"}
    return [
        {
            "unit": "Count",
            "currentValue": used(cloud, region, name),
            "limit": limit(cloud, region, name),
            "name": {"value": name, "localizedValue": titles.get(name, f"{name} vCPUs")},
        }
        for name in (TOTAL, MACHINES, SPOT, *families)
    ]


def counters(size: TwinSize, spot: bool) -> tuple[str, ...]:
    """Spot VMs count towards a limit of their own."""
    return (SPOT,) if spot else (TOTAL, size.family)


def size_of(vm: Resource) -> TwinSize:
    return catalog.SIZES[str(vm.properties["hardwareProfile"]["vmSize"]).lower()]


def is_spot(vm: Resource) -> bool:
    return str(vm.properties.get("priority", "")).lower() in ("spot", "low")


def _failed(vm: Resource) -> bool:
    """A VM that was never allocated uses nothing."""
    return vm.properties.get("provisioningState") == "Failed" and "timeCreated" not in vm.properties


ADDRESSES = "Microsoft.Network/publicIPAddresses"
_NETWORK = "Microsoft.Network"
_ORDINARY = 20  # of a subscription that pays as it goes; a student's has 3, one with an enterprise agreement 1,000

Body = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Count:
    """One of Azure's limits of addresses. The name, its title, and the refusal's code and what it says of addresses."""

    name: str
    title: str
    code: str
    words: str
    counts: Callable[[Body], bool]


def _standard(body: Body) -> bool:
    return str((body.get("sku") or {}).get("name", "Basic")).lower() == "standard"


def _ipv4(body: Body) -> bool:
    return str(body["properties"].get("publicIPAddressVersion", "IPv4")).lower() == "ipv4"


def _static(body: Body) -> bool:
    return str(body["properties"].get("publicIPAllocationMethod", "Dynamic")).lower() == "static"


# Prefixes are not imitated, so all that has an address is an address itself.
_COUNTS = (
    Count(
        "IPv4StandardSkuPublicIpAddresses",
        "Public IPv4 Addresses - Standard",
        "IPv4StandardSkuPublicIpCountLimitReached",
        "IPv4 Standard SKU public IP addresses",
        lambda body: _standard(body) and _ipv4(body),
    ),
    Count(
        "StaticPublicIPAddresses",
        "Static Public IP Addresses",
        "StaticPublicIPCountLimitReached",
        "public IP addresses with static allocation method",
        _static,
    ),
    Count(
        "PublicIPAddresses",
        "Public IP Addresses",
        "PublicIPCountLimitReached",
        "public IP addresses",
        bool,
    ),
)
_OTHERS = (  # counted and never reached: nobody has so many on one computer
    ("VirtualNetworks", "Virtual Networks", "virtualNetworks", 1000),
    ("NetworkSecurityGroups", "Network Security Groups", "networkSecurityGroups", 5000),
    ("NetworkInterfaces", "Network Interfaces", "networkInterfaces", 65_536),
)


def check_addresses(cloud: CloudState, region: str, body: Body) -> None:
    """Refused where one more address like this would be too many."""
    for one in _COUNTS:
        most = _limit(cloud, region, one.name)
        if one.counts(body) and _used(cloud, region, one) + 1 > most:
            message = f"Cannot create more than {most} {one.words} for this subscription in this region."
            raise invalid(message, one.code)


def address_usages(cloud: CloudState, region: str, scope: str) -> list[dict[str, Any]]:
    """`scope` is the id of the region in the network service."""
    found = [(one.name, one.title, _used(cloud, region, one), _limit(cloud, region, one.name)) for one in _COUNTS]
    found += [
        (name, title, sum(each.region == region for each in cloud.all(f"{_NETWORK}/{kind}")), most)
        for name, title, kind, most in _OTHERS
    ]
    return [
        {
            "id": f"{scope}/usages/{name}",
            "unit": "Count",
            "currentValue": used,
            "limit": most,
            "name": {"value": name, "localizedValue": title},
        }
        for name, title, used, most in found
    ]


def _limit(cloud: CloudState, region: str, name: str) -> int:
    return cloud.quotas.get(f"{region}/{name}".lower(), _ORDINARY)


def _used(cloud: CloudState, region: str, count: Count) -> int:
    return sum(one.region == region and count.counts(one.body) for one in cloud.all(ADDRESSES))
