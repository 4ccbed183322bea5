"""Offers before an account is set up: common sizes at the list prices in the package, which are dated and never treated
as current."""

from __future__ import annotations

import json
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import Any

from stoker.model.node.node import Need, Offer
from stoker.providers.azure.account.account import Account
from stoker.providers.azure.market.gpus import gpus_of
from stoker.providers.azure.market.listing import ADDRESS_PER_HOUR, Listing
from stoker.providers.azure.market.sizes import AzureSize, fits

RENEW = "python -m stoker.providers.azure.market.refresh"
# Name, vCPUs, memory in GB, GPUs: from Azure's documentation of sizes.
_SIZES = (
    *(
        (f"Standard_D{cpus}{kind}_v5", cpus, 4 * cpus, 0)
        for kind in ("s", "as")
        for cpus in (2, 4, 8, 16, 32, 48, 64, 96)
    ),
    *((f"Standard_E{cpus}s_v5", cpus, 8 * cpus, 0) for cpus in (2, 4, 8, 16, 32, 64)),
    ("Standard_NC4as_T4_v3", 4, 28, 1),
    ("Standard_NC8as_T4_v3", 8, 56, 1),
    ("Standard_NC16as_T4_v3", 16, 110, 1),
    ("Standard_NC64as_T4_v3", 64, 440, 4),
    ("Standard_NV6ads_A10_v5", 6, 55, 1),
    ("Standard_NV12ads_A10_v5", 12, 110, 1),
    ("Standard_NV18ads_A10_v5", 18, 220, 1),
    ("Standard_NV36ads_A10_v5", 36, 440, 1),
    ("Standard_NV72ads_A10_v5", 72, 880, 2),
    ("Standard_NC24ads_A100_v4", 24, 220, 1),
    ("Standard_NC48ads_A100_v4", 48, 440, 2),
    ("Standard_NC96ads_A100_v4", 96, 880, 4),
    ("Standard_ND96asr_v4", 96, 900, 8),
    ("Standard_ND96amsr_A100_v4", 96, 1900, 8),
    ("Standard_NC40ads_H100_v5", 40, 320, 1),
    ("Standard_NC80adis_H100_v5", 80, 640, 2),
    ("Standard_ND96isr_H100_v5", 96, 1900, 8),
)


def listed(need: Need, why: str) -> list[Offer]:
    """What fits, in the regions that have a price. `why` explains why none of it can be started yet."""
    found = []
    for region in [need.region] if need.region else regions():
        prices = listing(region)
        for size in sizes(region) if prices else ():
            if prices and fits(size, need) and (price := _per_hour(prices, size.name, spot=need.spot)) is not None:
                full = _per_hour(prices, size.name, spot=False)
                found.append(
                    Offer(
                        "azure",
                        size.name,
                        region,
                        price,
                        spot=need.spot,
                        on_demand_usd_per_hour=full,
                        priced_at=prices.as_of,
                        unready=why,
                        renewed_by=RENEW,
                    )
                )
    return found


def sizes(region: str) -> list[AzureSize]:
    return [
        AzureSize(name, "", cpus, float(memory), region, spot=True, gpus=gpus_of(name, gpus, cpus))
        for name, cpus, memory, gpus in _SIZES
    ]


def _per_hour(prices: Listing, size: str, *, spot: bool) -> Decimal | None:
    """Of a typical node: the VM, its disk, and its address where it has one."""
    usual, machine = Account(""), prices.machine(size, spot=spot)
    if machine is None:
        return None
    address = ADDRESS_PER_HOUR if usual.addressed(of_set=usual.restored(spot=spot)) else Decimal(0)
    return machine + (prices.disk_per_hour(usual.disk_gb) or Decimal(0)) + address


FILE = Path(__file__).with_name("snapshot.json")


def regions() -> list[str]:
    return sorted(_told()["regions"])


def listing(region: str) -> Listing | None:
    """None for a region that it does not contain."""
    told = _told()
    if region not in told["regions"]:
        return None
    return Listing.from_plain({**told["regions"][region], "as_of": told["as_of"], "currency": told["currency"]})


def disk_per_hour(size_gb: int) -> Decimal:
    """Where the list has none: about the same in every region."""
    known = listing("eastus")
    price = known.disk_per_hour(size_gb) if known else None
    return price or Decimal(0)


def _told() -> dict[str, Any]:
    return _read(FILE.stat().st_mtime_ns)  # a server that is up sees what was refreshed


@lru_cache(maxsize=1)
def _read(_changed_ns: int) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return told
