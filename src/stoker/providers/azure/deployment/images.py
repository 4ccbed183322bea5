"""Which image and disk a size boots from: they must match its processor, its generation and its GPU. Pure."""

from __future__ import annotations

from typing import Any

from stoker.providers.azure.market.sizes import AzureSize

PLAIN = "Canonical:0001-com-ubuntu-server-jammy:22_04-lts-gen2:latest"  # a tenth of the next one's size: boots faster
GENERATION_1 = "Canonical:0001-com-ubuntu-server-jammy:22_04-lts:latest"
ARM = "Canonical:0001-com-ubuntu-server-jammy:22_04-lts-arm64:latest"
HPC = "microsoft-dsvm:ubuntu-hpc:2204:latest"  # has NVIDIA's drivers and a container runtime
ROCM = "microsoft-dsvm:ubuntu-hpc:2204-rocm:latest"  # the same with AMD's drivers


def image_of(size: AzureSize) -> str:
    """`publisher:offer:sku:version`"""
    if size.architecture == "Arm64":
        return ARM
    if not size.generation_2:
        return GENERATION_1
    if size.gpus.count and not size.gpus.nvidia:
        return ROCM
    return HPC if size.gpus.driver_in_image else PLAIN


def needs_driver(size: AzureSize, own_image: str) -> bool:
    """Whether the driver must be installed at the first boot. A custom image is assumed to contain it."""
    if not size.gpus.nvidia or own_image.startswith("/"):
        return False
    return "hpc" not in (own_image or image_of(size)).lower()


def disk_of(size: AzureSize) -> str:
    return "Premium_LRS" if size.premium else "StandardSSD_LRS"


def reference(text: str) -> dict[str, Any]:
    """`publisher:offer:sku:version`, or the id of a custom image."""
    if text.startswith("/"):
        return {"id": text}
    publisher, offer, sku, version = text.split(":")
    return {"publisher": publisher, "offer": offer, "sku": sku, "version": version}
