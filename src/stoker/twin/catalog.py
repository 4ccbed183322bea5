"""Which sizes there are, where, and for how much: a small part of Azure's own list, with its shape and its gaps.

Prices are near Azure's published ones and are no source for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Size:
    name: str
    family: str
    cpus: int
    memory_gb: float
    usd_per_hour: float  # on demand, Linux, in `eastus`
    spot_share: float  # of that
    gpus: int = 0
    gpu: str = ""

    @property
    def series(self) -> str:
        """As the price list calls it: `Standard_D4s_v5` is of the `Dsv5`."""
        word = self.name.removeprefix("Standard_").replace("_", " ")
        return "".join(letter for letter in word.split(" ")[0] if not letter.isdigit()) + "".join(word.split(" ")[1:])

    @property
    def label(self) -> str:
        return self.name.removeprefix("Standard_").replace("_", " ")


@dataclass(frozen=True, slots=True)
class Region:
    name: str
    title: str
    price_factor: float
    zones: tuple[str, ...] = ("1", "2", "3")
    lacks: tuple[str, ...] = ()  # beginnings of size names


SIZES = {
    size.name.lower(): size
    for size in (
        Size("Standard_B1s", "standardBSFamily", 1, 1, 0.0104, 0.40),
        Size("Standard_B2s", "standardBSFamily", 2, 4, 0.0416, 0.40),
        Size("Standard_DS1_v2", "standardDSv2Family", 1, 3.5, 0.073, 0.20),
        Size("Standard_D2s_v3", "standardDSv3Family", 2, 8, 0.096, 0.20),
        Size("Standard_D2s_v5", "standardDSv5Family", 2, 8, 0.096, 0.18),
        Size("Standard_D4s_v5", "standardDSv5Family", 4, 16, 0.192, 0.18),
        Size("Standard_D8s_v5", "standardDSv5Family", 8, 32, 0.384, 0.18),
        Size("Standard_D16s_v5", "standardDSv5Family", 16, 64, 0.768, 0.18),
        Size("Standard_D32s_v5", "standardDSv5Family", 32, 128, 1.536, 0.18),
        Size("Standard_E8s_v5", "standardESv5Family", 8, 64, 0.504, 0.20),
        Size("Standard_F4s_v2", "standardFSv2Family", 4, 8, 0.169, 0.22),
        Size("Standard_F8s_v2", "standardFSv2Family", 8, 16, 0.338, 0.22),
        Size("Standard_F16s_v2", "standardFSv2Family", 16, 32, 0.677, 0.22),
        Size("Standard_NC4as_T4_v3", "Standard NCASv3_T4 Family", 4, 28, 0.526, 0.25, 1, "T4"),
        Size("Standard_NC8as_T4_v3", "Standard NCASv3_T4 Family", 8, 56, 0.752, 0.25, 1, "T4"),
        Size("Standard_NC64as_T4_v3", "Standard NCASv3_T4 Family", 64, 440, 4.352, 0.25, 4, "T4"),
        Size("Standard_NV36ads_A10_v5", "StandardNVADSA10v5Family", 36, 440, 3.20, 0.20, 1, "A10"),
        Size("Standard_NC6s_v3", "standardNCSv3Family", 6, 112, 3.06, 0.20, 1, "V100"),
        Size("Standard_NC24ads_A100_v4", "StandardNCADSA100v4Family", 24, 220, 3.673, 0.30, 1, "A100"),
        Size("Standard_NC48ads_A100_v4", "StandardNCADSA100v4Family", 48, 440, 7.346, 0.30, 2, "A100"),
        Size("Standard_NC96ads_A100_v4", "StandardNCADSA100v4Family", 96, 880, 14.692, 0.30, 4, "A100"),
        Size("Standard_ND96asr_v4", "standardNDASv4_A100Family", 96, 900, 27.197, 0.35, 8, "A100"),
        Size("Standard_ND96amsr_A100_v4", "standardNDAMSv4_A100Family", 96, 1900, 32.77, 0.35, 8, "A100"),
        Size("Standard_NC40ads_H100_v5", "StandardNCadsH100v5Family", 40, 320, 6.98, 0.35, 1, "H100"),
        Size("Standard_ND96isr_H100_v5", "standardNDSH100v5Family", 96, 1900, 98.32, 0.40, 8, "H100"),
    )
}

REGIONS = {
    region.name: region
    for region in (
        Region("eastus", "East US", 1.0, lacks=("Standard_NC40ads",)),
        Region("eastus2", "East US 2", 1.0, lacks=("Standard_ND96asr",)),
        Region("westus2", "West US 2", 1.0, lacks=("Standard_ND", "Standard_NC40ads")),
        Region("southcentralus", "South Central US", 1.2, lacks=("Standard_NC40ads",)),
        Region("westus", "West US", 1.17, zones=(), lacks=("Standard_ND", "Standard_NC")),
        Region("northeurope", "North Europe", 1.11, lacks=("Standard_ND", "Standard_NC40ads")),
        Region("westeurope", "West Europe", 1.2, lacks=("Standard_ND96isr",)),
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


def disk_usd_per_month(size_gb: float) -> float:
    return next((usd for holds_gb, usd in DISK_TIERS.values() if size_gb <= holds_gb), DISK_TIERS["P50"][1])


def sku(size: Size, region: str, restricted: bool) -> dict[str, Any]:
    """A size as the list of resource SKUs shows it."""
    zones = list(REGIONS[region].zones)
    facts = {
        "vCPUs": size.cpus,
        "vCPUsAvailable": size.cpus,
        "MemoryGB": size.memory_gb,
        "GPUs": size.gpus,
        "LowPriorityCapable": True,
        "PremiumIO": True,
        "HyperVGenerations": "V1,V2",
        "CpuArchitectureType": "x64",
        "MaxDataDiskCount": 8,
        "AcceleratedNetworkingEnabled": size.cpus > 1,
        "EncryptionAtHostSupported": True,
        "EphemeralOSDiskSupported": True,
    }
    info = {"type": "Location", "values": [region], "reasonCode": "NotAvailableForSubscription"}
    return {
        "resourceType": "virtualMachines",
        "name": size.name,
        "tier": "Standard",
        "size": size.name.removeprefix("Standard_"),
        "family": size.family,
        "locations": [region],
        "locationInfo": [{"location": region, "zones": zones, "zoneDetails": []}],
        "capabilities": [{"name": name, "value": str(value)} for name, value in facts.items() if value != 0],
        "restrictions": [{**info, "restrictionInfo": {"locations": [region], "zones": zones}}] if restricted else [],
    }
