"""GPU drivers: which image or extension brings one. What answers in the machine only lists its GPUs; there are none."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from stoker.twin import quota
from stoker.twin.state import Resource

NVIDIA = ("T4", "A10", "A100", "H100", "V100")
# azhpc-images#406 and #398: the image for high-performance computing has no driver that works for V100 and A10.
_OF_HPC_IMAGE = ("T4", "A100", "H100")
_HPC, _ROCM = "ubuntu-hpc", "rocm"
_PROGRAM = "/usr/local/sbin/nvidia-smi"


def in_image(vm: Resource) -> bool:
    image: Mapping[str, Any] = vm.properties["storageProfile"].get("imageReference") or {}
    offer, sku = (str(image.get(word, "")).lower() for word in ("offer", "sku"))
    return offer == _HPC and _ROCM not in sku and quota.size_of(vm).gpu in _OF_HPC_IMAGE


def installing(vm: Resource) -> str:
    """A script that brings `nvidia-smi` to the machine."""
    size = quota.size_of(vm)
    listed = "\n".join(f"GPU {number}: NVIDIA {size.gpu} (a twin has none)" for number in range(size.gpus))
    program = f"#!/bin/sh\ncat <<'END'\n{listed}\nEND\n"
    return "\n".join(
        [
            "set -e",
            f"mkdir -p $(dirname {_PROGRAM})",
            f"printf %s {shlex.quote(program)} > {_PROGRAM}.part",
            f"chmod 755 {_PROGRAM}.part",
            f"mv {_PROGRAM}.part {_PROGRAM}",
        ]
    )
