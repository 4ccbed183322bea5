"""How many public addresses a subscription may have in a region: limits, what is used, and the refusals."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from stoker.twin.refusal import invalid
from stoker.twin.state import CloudState

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


def check(cloud: CloudState, region: str, body: Body) -> None:
    """Refused where one more address like this would be too many."""
    for one in _COUNTS:
        most = _limit(cloud, region, one.name)
        if one.counts(body) and _used(cloud, region, one) + 1 > most:
            message = f"Cannot create more than {most} {one.words} for this subscription in this region."
            raise invalid(message, one.code)


def usages(cloud: CloudState, region: str, scope: str) -> list[dict[str, Any]]:
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
