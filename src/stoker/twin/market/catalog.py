"""Sizes, regions and images that the twin offers: a small part of Azure's lists, with on-demand prices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["REGIONS", "SIZES", "Region", "TwinSize", "sizes_in"]


@dataclass(frozen=True, slots=True)
class TwinSize:
    name: str
    family: str
    cpus: int
    memory_gb: float
    usd_per_hour: float  # on demand, Linux, in `eastus`
    spot_share: float  # of that; 0: not available as Spot
    gpus: int = 0  # as the list of resource SKUs counts them: a sixth of an A10 counts as one
    gpu: str = ""
    architecture: str = "x64"
    generations: str = "V1,V2"  # of Hyper-V
    premium: bool = True  # supports Premium SSDs
    confidential: str = ""  # SNP or TDX
    usable_cpus: int = 0  # of a size with constrained cores; 0: all
    closed: bool = False  # listed as unavailable to this subscription: new ones cannot use the older families
    retired: bool = False  # still listed, and refused
    controllers: str = "SCSI"  # of disks

    @property
    def tier(self) -> str:
        return self.name.split("_")[0]

    @property
    def label(self) -> str:
        """Its name in meters: `D4s v5`."""
        return self.name.partition("_")[2].replace("_", " ")

    @property
    def series(self) -> str:
        """Its series in the price list: `Standard_D4s_v5` belongs to `Dsv5`."""
        first, *rest = self.label.split(" ")
        return "".join(letter for letter in first if not letter.isdigit()) + "".join(rest)

    @property
    def spot(self) -> bool:
        return self.spot_share > 0

    @property
    def accelerated(self) -> bool:
        """Whether it supports accelerated networking."""
        return self.cpus > 1 and not self.name.startswith(("Standard_A", "Basic_"))


_PLAIN = (
    TwinSize("Standard_D2s_v5", "standardDSv5Family", 2, 8, 0.096, 0.18),
    TwinSize("Standard_D4s_v5", "standardDSv5Family", 4, 16, 0.192, 0.18),
    TwinSize("Standard_D8s_v5", "standardDSv5Family", 8, 32, 0.384, 0.18),
    TwinSize("Standard_D16s_v5", "standardDSv5Family", 16, 64, 0.768, 0.18),
    TwinSize("Standard_D32s_v5", "standardDSv5Family", 32, 128, 1.536, 0.18),
    TwinSize("Standard_D2as_v5", "standardDASv5Family", 2, 8, 0.086, 0.19),
    TwinSize("Standard_D4as_v5", "standardDASv5Family", 4, 16, 0.172, 0.22),
    TwinSize("Standard_E8s_v5", "standardESv5Family", 8, 64, 0.504, 0.20),
    TwinSize("Standard_E8-4s_v5", "standardESv5Family", 8, 64, 0.504, 0.20, usable_cpus=4),
    TwinSize("Standard_F4as_v6", "standardFasv6Family", 4, 16, 0.189, 0.22, generations="V2", controllers="SCSI, NVMe"),
    TwinSize("Standard_F8as_v6", "standardFasv6Family", 8, 32, 0.378, 0.22, generations="V2", controllers="SCSI, NVMe"),
    TwinSize(
        "Standard_F16as_v6", "standardFasv6Family", 16, 64, 0.756, 0.22, generations="V2", controllers="SCSI, NVMe"
    ),
)
# Cheap, and each refuses what fits the others: another processor, generation, disk or image.
_PECULIAR = (
    TwinSize("Standard_D2ps_v5", "standardDPSv5Family", 2, 8, 0.077, 0.15, architecture="Arm64", generations="V2"),
    TwinSize("Standard_D4ps_v5", "standardDPSv5Family", 4, 16, 0.154, 0.15, architecture="Arm64", generations="V2"),
    TwinSize("Standard_A1_v2", "standardAv2Family", 1, 2, 0.043, 0.22, generations="V1", premium=False),
    TwinSize("Standard_A2_v2", "standardAv2Family", 2, 4, 0.091, 0.11, generations="V1", premium=False),
    TwinSize("Standard_D2_v5", "standardDv5Family", 2, 8, 0.096, 0.15, premium=False),
    TwinSize("Basic_A0", "basicAFamily", 1, 0.75, 0.018, 0, generations="V1", premium=False),
    TwinSize("Standard_DC2as_v5", "standardDCASv5Family", 2, 8, 0.086, 0.16, generations="V2", confidential="SNP"),
)
# Not available to new subscriptions any more.
_OLD = (
    TwinSize("Standard_B1s", "standardBSFamily", 1, 1, 0.0104, 0, closed=True),
    TwinSize("Standard_B2s", "standardBSFamily", 2, 4, 0.0416, 0, closed=True),
    TwinSize("Standard_DS1_v2", "standardDSv2Family", 1, 3.5, 0.073, 0.20, closed=True),
    TwinSize("Standard_D2s_v3", "standardDSv3Family", 2, 8, 0.096, 0.16, closed=True),
    TwinSize("Standard_D2s_v4", "standardDSv4Family", 2, 8, 0.096, 0.16, closed=True),
    TwinSize("Standard_F4s_v2", "standardFSv2Family", 4, 8, 0.169, 0.20, closed=True),
    TwinSize("Standard_NC6s_v3", "standardNCSv3Family", 6, 112, 3.06, 0.10, 1, "V100", retired=True),
    TwinSize("Standard_NV4as_v4", "standardNVSv4Family", 4, 14, 0.233, 0.20, 1, "MI25", retired=True),
)
_GPUS = (
    TwinSize("Standard_NC4as_T4_v3", "Standard NCASv3_T4 Family", 4, 28, 0.526, 0.25, 1, "T4"),
    TwinSize("Standard_NC8as_T4_v3", "Standard NCASv3_T4 Family", 8, 56, 0.752, 0.25, 1, "T4"),
    TwinSize("Standard_NC64as_T4_v3", "Standard NCASv3_T4 Family", 64, 440, 4.352, 0.25, 4, "T4"),
    TwinSize("Standard_NV6ads_A10_v5", "StandardNVADSA10v5Family", 6, 55, 0.454, 0.20, 1, "A10"),
    TwinSize("Standard_NV12ads_A10_v5", "StandardNVADSA10v5Family", 12, 110, 0.908, 0.20, 1, "A10"),
    TwinSize("Standard_NV18ads_A10_v5", "StandardNVADSA10v5Family", 18, 220, 1.60, 0.20, 1, "A10"),
    TwinSize("Standard_NV36ads_A10_v5", "StandardNVADSA10v5Family", 36, 440, 3.20, 0.20, 1, "A10"),
    TwinSize("Standard_NV72ads_A10_v5", "StandardNVADSA10v5Family", 72, 880, 6.52, 0.20, 2, "A10"),
    TwinSize("Standard_NV4ads_V710_v5", "StandardNVadsV710v5Family", 4, 14, 0.26, 0.20, 1, "V710", generations="V2"),
    TwinSize("Standard_NG8ads_V620_v1", "StandardNGADSV620v1Family", 8, 16, 0.468, 0.20, 1, "V620", generations="V2"),
    TwinSize(
        "Standard_NC24ads_A100_v4", "StandardNCADSA100v4Family", 24, 220, 3.673, 0.30, 1, "A100", generations="V2"
    ),
    TwinSize(
        "Standard_NC48ads_A100_v4", "StandardNCADSA100v4Family", 48, 440, 7.346, 0.30, 2, "A100", generations="V2"
    ),
    TwinSize(
        "Standard_NC96ads_A100_v4", "StandardNCADSA100v4Family", 96, 880, 14.692, 0.30, 4, "A100", generations="V2"
    ),
    TwinSize("Standard_ND96asr_v4", "standardNDASv4_A100Family", 96, 900, 27.197, 0.35, 8, "A100", generations="V2"),
    TwinSize(
        "Standard_ND96amsr_A100_v4", "standardNDAMSv4_A100Family", 96, 1900, 32.77, 0.35, 8, "A100", generations="V2"
    ),
    TwinSize("Standard_NC40ads_H100_v5", "StandardNCadsH100v5Family", 40, 320, 6.98, 0.35, 1, "H100", generations="V2"),
    TwinSize(
        "Standard_NCC40ads_H100_v5",
        "StandardNCCadsH100v5Family",
        *(40, 320, 6.98, 0.30, 1, "H100"),
        generations="V2",
        confidential="SNP",
    ),
    TwinSize("Standard_ND96isr_H100_v5", "standardNDSH100v5Family", 96, 1900, 98.32, 0.40, 8, "H100", generations="V2"),
    TwinSize(
        "Standard_ND96isr_MI300X_v5",
        "standardNDISRMI300Xv5Family",
        *(96, 1850, 48.0, 0.40, 8, "MI300X"),
        generations="V2",
    ),
)

SIZES = {size.name.lower(): size for size in (*_PLAIN, *_PECULIAR, *_OLD, *_GPUS)}

_NOT_YOURS = "NotAvailableForSubscription"


def sku(size: TwinSize, region: str, *, restricted: bool) -> dict[str, Any]:
    """`restricted`: a test has made it unavailable there."""
    return {
        "resourceType": "virtualMachines",
        "name": size.name,
        "tier": size.tier,
        "size": size.name.partition("_")[2],
        "family": size.family,
        "locations": [region],
        "locationInfo": [{"location": region, "zones": list(REGIONS[region].zones), "zoneDetails": []}],
        "capabilities": [{"name": name, "value": str(value)} for name, value in _capabilities(size).items()],
        "restrictions": _restrictions(size, region, restricted or size.closed),
    }


def disk_sku(name: str, tier: str, size: str, region: str) -> dict[str, Any]:
    """The list contains other kinds besides sizes, and some of them have names of sizes."""
    place = {"location": region, "zones": list(REGIONS[region].zones), "zoneDetails": []}
    told = {"resourceType": "disks", "name": name, "tier": tier, "size": size, "locations": [region]}
    return {**told, "locationInfo": [place], "capabilities": [], "restrictions": []}


def host_sku(region: str) -> dict[str, Any]:
    place = {"location": region, "zones": list(REGIONS[region].zones), "zoneDetails": []}
    told = {"resourceType": "hostGroups/hosts", "name": "DSv5-Type1", "tier": "Standard", "locations": [region]}
    return {**told, "locationInfo": [place], "capabilities": [{"name": "vCPUs", "value": "119"}], "restrictions": []}


def _capabilities(size: TwinSize) -> dict[str, object]:
    """A missing capability may be absent instead of `False`, as in Azure."""
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


def _restrictions(size: TwinSize, region: str, closed: bool) -> list[dict[str, Any]]:
    zones = list(REGIONS[region].zones)
    found = []
    if closed:
        found.append(_restriction("Location", region, {"locations": [region]}))
    if some := zones if closed else list(withheld_zones(size, region)):
        found.append(_restriction("Zone", region, {"locations": [region], "zones": some}))
    return found


def _restriction(kind: str, region: str, info: dict[str, Any]) -> dict[str, Any]:
    return {"type": kind, "values": [region], "restrictionInfo": info, "reasonCode": _NOT_YOURS}


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


VERSION = "24.04.202611010"
DISK_GB = 30


@dataclass(frozen=True, slots=True)
class Image:
    publisher: str
    offer: str
    sku: str
    generation: str = "V2"
    architecture: str = "x64"
    disk_gb: int = DISK_GB

    @property
    def words(self) -> tuple[str, str, str]:
        return self.publisher.lower(), self.offer.lower(), self.sku.lower()


_JAMMY, _NOBLE, _DEBIAN = "0001-com-ubuntu-server-jammy", "ubuntu-24_04-lts", "debian-12"

IMAGES = {
    image.words: image
    for image in (
        Image("Canonical", _JAMMY, "22_04-lts-gen2"),
        Image("Canonical", _JAMMY, "22_04-lts", "V1"),
        Image("Canonical", _JAMMY, "22_04-lts-arm64", architecture="Arm64"),
        Image("Canonical", _NOBLE, "server"),
        Image("Canonical", _NOBLE, "server-gen1", "V1"),
        Image("Canonical", _NOBLE, "server-arm64", architecture="Arm64"),
        Image("Debian", _DEBIAN, "12-gen2"),
        Image("Debian", _DEBIAN, "12", "V1"),
        Image("Debian", _DEBIAN, "12-arm64", architecture="Arm64"),
        Image("microsoft-dsvm", "ubuntu-hpc", "2204", disk_gb=64),
        Image("microsoft-dsvm", "ubuntu-hpc", "2204-rocm", disk_gb=64),
        Image("microsoft-dsvm", "ubuntu-hpc", "2404", disk_gb=64),
    )
}
ALIASES = {
    "Ubuntu2204": IMAGES["canonical", _JAMMY, "22_04-lts-gen2"],
    "Ubuntu2404": IMAGES["canonical", _NOBLE, "server"],
    "Debian12": IMAGES["debian", _DEBIAN, "12-gen2"],
}


def named(reference: Mapping[str, Any]) -> Image | None:
    """The image of an `imageReference`; None where the image, or its version, does not exist."""
    publisher, offer, sku = (str(reference.get(word, "")).lower() for word in ("publisher", "offer", "sku"))
    image = IMAGES.get((publisher, offer, sku))
    return image if str(reference.get("version", "")).lower() in ("latest", VERSION) else None
