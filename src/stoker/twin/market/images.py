"""The images of the twin's marketplace: each has one processor architecture and one generation, as sizes do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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
