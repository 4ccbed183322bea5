"""Which sizes fit a need: the list that Azure gives, read once. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from stoker.model.node import Need

# A size's name says its GPU: `Standard_NC24ads_A100_v4`. Older ones do not.
_NAMED = re.compile(r"_(A100|H100|H200|MI300X|A10|T4|L40S?)(?:_|$)")
_SERIES = {"NC": {"": "K80", "v2": "P100", "v3": "V100"}, "ND": {"v2": "V100", "v4": "A100"}, "NV": {"": "M60"}}
_OLD = re.compile(r"Standard_(N[CDV])\d+\w*?(?:_(v\d))?$")


@dataclass(frozen=True, slots=True)
class Size:
    name: str
    family: str
    cpus: int
    memory_gb: float
    gpus: int
    gpu: str
    region: str
    spot: bool  # can be had as spot
    zones: tuple[str, ...] = ()


def read_sizes(skus: Iterable[Mapping[str, Any]], region: str) -> list[Size]:
    """Of a region's resource SKUs, as on the wire, the machines this subscription may have there."""
    sizes = []
    for sku in skus:
        if sku.get("resourceType") != "virtualMachines" or _withheld(sku):
            continue
        has = {one["name"]: one["value"] for one in sku.get("capabilities") or ()}
        gpus = int(has.get("GPUs", 0))
        places = [one for one in sku.get("locationInfo") or () if str(one.get("location", "")).lower() == region]
        sizes.append(
            Size(
                name=sku["name"],
                family=sku.get("family", ""),
                cpus=int(float(has.get("vCPUs", 0))),
                memory_gb=float(has.get("MemoryGB", 0)),
                gpus=gpus,
                gpu=gpu_of(sku["name"]) if gpus else "",
                region=region,
                spot=has.get("LowPriorityCapable") == "True",
                zones=tuple(sorted(zone for one in places for zone in one.get("zones") or ())),
            )
        )
    return sizes


def gpu_of(name: str) -> str:
    if found := _NAMED.search(name):
        return found[1]
    old = _OLD.match(name)
    return _SERIES[old[1]].get(old[2] or "", "") if old else ""


def fits(size: Size, need: Need) -> bool:
    if need.size:
        return size.name.lower() == need.size.lower()
    if need.spot and not size.spot:
        return False
    # A machine with GPUs that nobody asked for is never the cheapest way to have processors.
    return (
        size.cpus >= need.cpus
        and size.memory_gb >= need.memory_gb
        and (size.gpus >= need.gpus if need.gpus else not size.gpus)
        and (not need.gpu or size.gpu.lower() == need.gpu.lower())
    )


def _withheld(sku: Mapping[str, Any]) -> bool:
    restrictions = sku.get("restrictions") or ()
    return any(one.get("type") == "Location" for one in restrictions)
