"""The prices of a region, as the public price list or a file has them. Pure: it sends no request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Any

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
