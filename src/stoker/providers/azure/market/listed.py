"""The prices of a region, as the public price list or a file has them, and offers from the list prices in the
package."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from pathlib import Path
from typing import Any

from stoker.model.node import Need, Offer
from stoker.providers.azure.account.account import Account
from stoker.providers.azure.market.sizes import AzureSize, fits, gpus_of

LEAP = 100  # a price that changed by this factor is not trusted until it is read once more
MONTH_HOURS = 730  # hours per month in the billing of disks
ADDRESS_PER_HOUR = Decimal("0.005")  # of a public address, in dollars: the same in every region
_HOLDS_GB = {"4": 32, "6": 64, "10": 128, "15": 256, "20": 512, "30": 1024, "40": 2048, "50": 4096}
PREMIUM, STANDARD = "P", "E"  # prefixes of the tiers of Premium and Standard SSDs
_DISKS = {"Premium SSD Managed Disks": PREMIUM, "Standard SSD Managed Disks": STANDARD}
# Rows with the name of a size that are not the price of a Linux VM of that size.
_OTHERS = (
    "Windows",
    " Win",
    "Cloud Services",
    "CloudServices",
    "Dedicated Host",
    "Low Priority",
    "Reservation",
    "Savings Plan",
    "Expired",
)
_SPOT = "spot "  # prefix of the names of spot VMs


@dataclass(frozen=True, slots=True)
class Listing:
    """`machines` has the price per hour, by size in lower case, with the prefix `spot ` for spot VMs. `disks` has the
    price per month, by tier."""

    as_of: datetime
    machines: Mapping[str, Decimal]
    disks: Mapping[str, Decimal] = field(default_factory=dict)
    currency: str = "USD"
    doubted: Mapping[str, Decimal] = field(default_factory=dict)  # prices that were read and not trusted

    def machine(self, size: str, *, spot: bool) -> Decimal | None:
        return self.machines.get(f"{_SPOT if spot else ''}{size.lower()}")

    def disk_per_hour(self, size_gb: int, kind: str = PREMIUM) -> Decimal | None:
        """Of the smallest tier with this capacity."""
        tiers = ((f"{kind}{number}", holds_gb) for number, holds_gb in _HOLDS_GB.items())
        tier = next((tier for tier, holds_gb in tiers if holds_gb >= size_gb and tier in self.disks), None)
        return self.disks[tier] / MONTH_HOURS if tier else None

    @property
    def plain(self) -> dict[str, Any]:
        return {
            "as_of": self.as_of.isoformat(),
            "currency": self.currency,
            "machines": {name: str(price) for name, price in sorted(self.machines.items())},
            "disks": {name: str(price) for name, price in self.disks.items()},
            "doubted": {name: str(price) for name, price in self.doubted.items()},
        }

    @classmethod
    def from_plain(cls, told: Mapping[str, Any]) -> Listing:
        """Raises ValueError, KeyError or TypeError where `told` was not written by `plain`."""
        numbers = {kind: _numbers(told.get(kind) or {}) for kind in ("machines", "disks", "doubted")}
        return cls(datetime.fromisoformat(told["as_of"]), currency=told.get("currency", "USD"), **numbers)


def read(items: Iterable[Mapping[str, Any]], as_of: datetime, currency: str) -> Listing:
    """From items of the price list as Azure sends them. Items without a price above zero are skipped."""
    machines: dict[str, Decimal] = {}
    disks: dict[str, Decimal] = {}
    for item in items:
        price, unit = _price(item), item.get("unitOfMeasure")
        if price is None or item.get("currencyCode", currency) != currency:
            continue
        if unit == "1 Hour" and (name := _machine(item)):
            # Two rows that nothing tells apart: the higher price counts, so that nobody spends more than shown.
            machines[name] = max(price, machines.get(name, price))
        elif unit == "1/Month" and (tier := _disk(item)):
            disks[tier] = price
    return Listing(as_of, machines, disks, currency)


def believed(before: Listing | None, fresh: Listing) -> Listing:
    """The fresh listing, except for prices that changed by more than `LEAP`: of those the higher one counts until the
    same is read again. So an error in the list neither stops a run nor lets it overspend."""
    if before is None or before.currency != fresh.currency:
        return fresh
    leapt = {
        name: price
        for name, price in fresh.machines.items()
        if _leaps(before.machines.get(name, price), price) and not _confirms(before.doubted.get(name), price)
    }
    dearer = {name: max(price, before.machines[name]) for name, price in leapt.items()}
    return replace(fresh, machines={**fresh.machines, **dearer}, doubted=leapt)


def _leaps(old: Decimal, new: Decimal) -> bool:
    return new >= old * LEAP or new * LEAP <= old


def _confirms(doubted: Decimal | None, price: Decimal) -> bool:
    """About the same as the price that was not trusted: spot prices change all the time."""
    return doubted is not None and doubted / 2 <= price <= doubted * 2


def _machine(item: Mapping[str, Any]) -> str:
    """The name of what the row prices; empty where it is not a Linux VM billed by the hour."""
    meter, size = str(item.get("meterName", "")), str(item.get("armSkuName", "")).lower()
    if item.get("serviceName", "Virtual Machines") != "Virtual Machines" or not size:
        return ""
    if item.get("type", "Consumption") != "Consumption" or item.get("isPrimaryMeterRegion") is False:
        return ""
    if item.get("reservationTerm") or any(
        word in str(item.get(name, "")) for name in ("productName", "skuName", "meterName") for word in _OTHERS
    ):
        return ""
    return f"{_SPOT}{size}" if "Spot" in meter else size


def _disk(item: Mapping[str, Any]) -> str:
    tier, kind = str(item.get("skuName", "")).removesuffix(" LRS"), _DISKS.get(str(item.get("productName", "")), "-")
    known = tier.startswith(kind) and tier.removeprefix(kind) in _HOLDS_GB
    return tier if known and str(item.get("meterName", "")).endswith("Disk") else ""


def _price(item: Mapping[str, Any]) -> Decimal | None:
    try:
        price = Decimal(str(item.get("retailPrice")))
    except InvalidOperation:
        return None
    return price if price.is_finite() and price > 0 else None


def _numbers(told: Mapping[str, str]) -> dict[str, Decimal]:
    try:
        return {name: Decimal(price) for name, price in told.items()}
    except (InvalidOperation, AttributeError) as error:
        raise ValueError(f"not a price list: {error}") from error


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
