"""Where each size is offered and at which price: a small part of Azure's own lists, with their gaps."""

from __future__ import annotations

from dataclasses import dataclass

from stoker.twin.market.sizes import SIZES, TwinSize

__all__ = ["REGIONS", "SIZES", "Region", "TwinSize", "sizes_in"]  # sizes are imported from here as well


@dataclass(frozen=True, slots=True)
class Region:
    name: str
    title: str
    price_factor: float
    zones: tuple[str, ...] = ("1", "2", "3")
    lacks: tuple[str, ...] = ()  # prefixes of size names
    withheld: tuple[
        tuple[str, tuple[str, ...]], ...
    ] = ()  # prefixes of size names, and zones where they are unavailable


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

# Premium SSDs are sold in tiers, each for disks up to a size in GB, at a monthly price.
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
# Standard SSDs likewise, for sizes without support for Premium SSDs.
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
CURRENCIES = {"USD": 1.0, "EUR": 0.92, "GBP": 0.79, "CHF": 0.88, "JPY": 150.0, "INR": 84.0}  # per dollar: invented
ADDRESS_USD_PER_HOUR = 0.005
BLOB_USD_PER_GB_MONTH = 0.0184  # hot, locally redundant, in `eastus`
DEFAULT_DISK_GB = 30
CORES_PER_FAMILY = 100  # an ordinary subscription's quota, per region
CORES_PER_GPU_FAMILY = 96
CORES_PER_REGION = 350
SPOT_CORES = 100


def sizes_in(region: str) -> list[TwinSize]:
    """The sizes offered there, available or not."""
    place = REGIONS[region]
    return [size for size in SIZES.values() if not size.name.startswith(place.lacks or ("\0",))]


def size_in(name: str, region: str) -> TwinSize | None:
    return next((size for size in sizes_in(region) if size.name.lower() == name.lower()), None)


def region_named(text: str) -> Region | None:
    """`West Europe` and `westeurope` are the same."""
    return REGIONS.get(text.replace(" ", "").lower())


def on_demand_usd(size: TwinSize, region: str) -> float:
    return round(size.usd_per_hour * REGIONS[region].price_factor, 6)


def withheld_zones(size: TwinSize, region: str) -> tuple[str, ...]:
    """Zones of the region where the size is unavailable to this subscription."""
    return next((zones for start, zones in REGIONS[region].withheld if size.name.startswith(start)), ())


def disk_usd_per_month(size_gb: float, *, premium: bool = True) -> float:
    tiers = list((DISK_TIERS if premium else STANDARD_TIERS).values())
    return next((usd for holds_gb, usd in tiers if size_gb <= holds_gb), tiers[-1][1])
