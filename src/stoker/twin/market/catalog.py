"""Where each size is offered and what things cost there: a small part of Azure's own lists, with their gaps."""

from __future__ import annotations

from dataclasses import dataclass

from stoker.twin.market.sizes import SIZES, Size

__all__ = ["REGIONS", "SIZES", "Region", "Size", "sizes_in"]  # sizes are had from here as well


@dataclass(frozen=True, slots=True)
class Region:
    name: str
    title: str
    price_factor: float
    zones: tuple[str, ...] = ("1", "2", "3")
    lacks: tuple[str, ...] = ()  # beginnings of size names
    withheld: tuple[tuple[str, tuple[str, ...]], ...] = ()  # beginnings of size names, and zones they are withheld in


REGIONS = {
    region.name: region
    for region in (
        Region("eastus", "East US", 1.0, lacks=("Standard_NC40ads",), withheld=(("Standard_NC24ads", ("1", "3")),)),
        Region("eastus2", "East US 2", 1.0, lacks=("Standard_ND96asr",)),
        Region(
            "westus2", "West US 2", 1.0, lacks=("Standard_ND", "Standard_NC40ads"), withheld=(("Standard_D", ("2",)),)
        ),
        Region("southcentralus", "South Central US", 1.2, lacks=("Standard_NC40ads",)),
        Region("westus", "West US", 1.17, zones=(), lacks=("Standard_ND", "Standard_NC")),
        Region("northeurope", "North Europe", 1.11, lacks=("Standard_ND", "Standard_NC40ads")),
        Region("westeurope", "West Europe", 1.2, lacks=("Standard_ND96isr_H100",)),
        Region("uksouth", "UK South", 1.16, lacks=("Standard_ND",)),
        Region("swedencentral", "Sweden Central", 1.06, lacks=("Standard_NC6s",)),
    )
}

# Premium SSDs are sold by tiers, each for disks of up to so many GB, at a price for a month.
DISK_TIERS = {
    "P4": (32, 5.28),
    "P6": (64, 10.21),
    "P10": (128, 19.71),
    "P15": (256, 38.02),
    "P20": (512, 73.22),
    "P30": (1024, 135.17),
    "P40": (2048, 259.05),
    "P50": (4096, 495.57),
}
# Standard SSDs likewise, for sizes that take no Premium SSD.
STANDARD_TIERS = {
    "E4": (32, 2.40),
    "E6": (64, 4.80),
    "E10": (128, 9.60),
    "E15": (256, 19.20),
    "E20": (512, 38.40),
    "E30": (1024, 76.80),
    "E40": (2048, 153.60),
    "E50": (4096, 307.20),
}
CURRENCIES = {"USD": 1.0, "EUR": 0.92, "GBP": 0.79, "CHF": 0.88, "JPY": 150.0, "INR": 84.0}  # for a dollar: made up
ADDRESS_USD_PER_HOUR = 0.005
BLOB_USD_PER_GB_MONTH = 0.0184  # hot, kept three times in one place, in `eastus`
DEFAULT_DISK_GB = 30
CORES_PER_FAMILY = 100  # an ordinary subscription's quota, per region
CORES_PER_GPU_FAMILY = 96
CORES_PER_REGION = 350
SPOT_CORES = 100


def sizes_in(region: str) -> list[Size]:
    """What is offered there, whether or not it can be had just now."""
    place = REGIONS[region]
    return [size for size in SIZES.values() if not size.name.startswith(place.lacks or ("\0",))]


def size_in(name: str, region: str) -> Size | None:
    return next((size for size in sizes_in(region) if size.name.lower() == name.lower()), None)


def region_named(text: str) -> Region | None:
    """`West Europe` and `westeurope` are the same."""
    return REGIONS.get(text.replace(" ", "").lower())


def on_demand_usd(size: Size, region: str) -> float:
    return round(size.usd_per_hour * REGIONS[region].price_factor, 6)


def withheld_zones(size: Size, region: str) -> tuple[str, ...]:
    """Zones of the region in which this subscription cannot have the size."""
    return next((zones for start, zones in REGIONS[region].withheld if size.name.startswith(start)), ())


def disk_usd_per_month(size_gb: float, *, premium: bool = True) -> float:
    tiers = list((DISK_TIERS if premium else STANDARD_TIERS).values())
    return next((usd for holds_gb, usd in tiers if size_gb <= holds_gb), tiers[-1][1])
