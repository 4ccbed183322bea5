"""Which sizes fit a need: Azure's list, read once. Pure. The GPUs of Azure's sizes: the list counts a sixth of an A10
as one, and names neither vendor nor model."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from stoker.errors import JobInvalid, Problem
from stoker.model.node import Need

# A size's name contains its GPU: `Standard_NC24ads_A100_v4`. Older names do not.
_NAMED = re.compile(r"_(A100|H100|H200|GB200|GB300|MI300X|RTXPRO6000BSE|A10|T4|L40S?|V620|V710)(?:_|$)")
_SERIES = {
    "NC": {"": "K80", "v2": "P100", "v3": "V100"},
    "ND": {"": "P40", "v2": "V100", "v4": "A100"},
    "NV": {"": "M60", "v2": "M60", "v3": "M60", "v4": "MI25"},
}
_OLD = re.compile(r"Standard_(N[CDV])\d+\w*?(?:_(v\d))?$")
_AMD = ("MI25", "MI300X", "V620", "V710")
# vCPUs of the sizes with less than one GPU: A10 and V710 are sold in sixths, the others in eighths and quarters.
_PARTS = {
    "A10": {6: Fraction(1, 6), 12: Fraction(1, 3), 18: Fraction(1, 2)},
    "MI25": {4: Fraction(1, 8), 8: Fraction(1, 4), 16: Fraction(1, 2)},
    "V620": {8: Fraction(1, 4), 16: Fraction(1, 2)},
    "V710": {4: Fraction(1, 6), 8: Fraction(1, 3), 12: Fraction(1, 2)},
}
_RETIRED = re.compile(r"Standard_(NC\d+r?s?(_v[23])?|ND\d+r?s?(_v2)?|NV\d+(as)?(_v[24])?|NV\d+s_v[23])(_Promo)?$")
# The HPC image has a driver for these, and none that works for V100 and A10.
_IN_IMAGE = ("T4", "A100", "H100", "H200")


@dataclass(frozen=True, slots=True)
class Gpus:
    """`share` is the fraction of a physical GPU that each one is."""

    count: int = 0
    model: str = ""
    share: Fraction = Fraction(1)

    @property
    def nvidia(self) -> bool:
        return bool(self.count) and self.model not in _AMD

    @property
    def whole(self) -> int:
        return self.count if self.share == 1 else 0

    @property
    def driver_in_image(self) -> bool:
        return self.model in _IN_IMAGE


def gpus_of(name: str, count: int, cpus: int) -> Gpus:
    """From a size's name and its entry in the list."""
    if not count:
        return Gpus()
    model = model_of(name)
    return Gpus(count, model, _PARTS.get(model, {}).get(cpus, Fraction(1)))


def model_of(name: str) -> str:
    if found := _NAMED.search(name):
        return found[1]
    old = _OLD.match(name)
    return _SERIES[old[1]].get(old[2] or "", "") if old else ""


def retired(name: str) -> bool:
    """Azure has retired these families of GPU VMs, and still lists some of them."""
    return _RETIRED.match(name) is not None


SPOT_CORES, CORES = "lowPriorityCores", "cores"  # quotas of a region, besides those of each family of sizes
_NOT_CONFIDENTIAL = (
    "a size that is not confidential: Azure boots confidential sizes only from special images and disks, which "
    "Stoker does not support"
)


@dataclass(frozen=True, slots=True)
class AzureSize:
    """A size that this subscription can use in a region. Image and disk must match `architecture`, `generation_2` and
    `premium`."""

    name: str
    family: str
    cpus: int  # that are usable: some sizes have fewer than their name suggests
    memory_gb: float
    region: str
    spot: bool  # available as Spot
    gpus: Gpus = Gpus()
    zones: tuple[str, ...] = ()  # available to this subscription
    architecture: str = "x64"
    generation_2: bool = True  # supports images of Hyper-V generation 2
    premium: bool = True  # supports Premium SSDs
    confidential: bool = False
    accelerated: bool = False  # networking

    @property
    def ordinary(self) -> bool:
        """It runs common software: x64 programs, from the usual image and disk."""
        return self.architecture == "x64" and self.generation_2 and self.premium and not self.confidential


def read_sizes(skus: Iterable[Mapping[str, Any]], region: str) -> list[AzureSize]:
    """From the resource SKUs of a region as Azure sends them: the VMs that this subscription may use there."""
    machines = (sku for sku in skus if sku.get("resourceType") == "virtualMachines")
    return [_read(sku, region) for sku in machines if not _withheld(sku, region) and not retired(sku["name"])]


def _read(sku: Mapping[str, Any], region: str) -> AzureSize:
    has = {one["name"]: one["value"] for one in sku.get("capabilities") or ()}
    cpus = int(float(has.get("vCPUs", 0)))
    return AzureSize(
        name=sku["name"],
        family=sku.get("family", ""),
        cpus=int(float(has.get("vCPUsAvailable") or cpus)),
        memory_gb=float(has.get("MemoryGB", 0)),
        region=region,
        spot=has.get("LowPriorityCapable") == "True",
        gpus=gpus_of(sku["name"], math.ceil(float(has.get("GPUs", 0))), cpus),
        zones=_zones(sku, region),
        architecture=has.get("CpuArchitectureType", "x64"),
        generation_2="V2" in has.get("HyperVGenerations", "V1"),
        premium=has.get("PremiumIO") == "True",
        confidential=bool(has.get("ConfidentialComputingType")),
        accelerated=has.get("AcceleratedNetworkingEnabled") == "True",
    )


def fits(size: AzureSize, need: Need) -> bool:
    """A size that the job names always fits. Of the others, only those that certainly run a training script. Raises
    JobInvalid where the named one cannot."""
    named = bool(need.size) and size.name.lower() == need.size.lower()
    if named and size.confidential:
        raise JobInvalid([Problem("size", f"`{size.name}`", _NOT_CONFIDENTIAL)])
    if need.spot and not size.spot:
        return False
    if need.size:
        return named
    return size.ordinary and size.cpus >= need.cpus and size.memory_gb >= need.memory_gb and _gpus_fit(size.gpus, need)


def _gpus_fit(gpus: Gpus, need: Need) -> bool:
    """A GPU means a whole NVIDIA GPU unless the job names another model; an unknown one may be neither. A VM with
    unrequested GPUs is never the cheapest way to get CPUs."""
    if not need.gpus:
        return not gpus.count
    named = bool(need.gpu) and gpus.model.lower() == need.gpu.lower()
    return gpus.whole >= need.gpus and (named or (not need.gpu and gpus.nvidia and bool(gpus.model)))


def _withheld(sku: Mapping[str, Any], region: str) -> bool:
    """A restriction of zones alone leaves the region open, because VMs are requested without a zone."""
    restrictions = sku.get("restrictions") or ()
    return any(one.get("type") == "Location" and _means(one, region) for one in restrictions)


def _zones(sku: Mapping[str, Any], region: str) -> tuple[str, ...]:
    places = [one for one in sku.get("locationInfo") or () if str(one.get("location", "")).lower() == region]
    return tuple(sorted({zone for one in places for zone in one.get("zones") or ()} - _closed(sku, region)))


def _closed(sku: Mapping[str, Any], region: str) -> set[str]:
    """Zones that are unavailable to this subscription."""
    found = [one for one in sku.get("restrictions") or () if one.get("type") == "Zone" and _means(one, region)]
    return {zone for one in found for zone in (one.get("restrictionInfo") or {}).get("zones") or ()}


def _means(restriction: Mapping[str, Any], region: str) -> bool:
    places = restriction.get("values") or (restriction.get("restrictionInfo") or {}).get("locations") or [region]
    return region in [str(place).lower() for place in places]
