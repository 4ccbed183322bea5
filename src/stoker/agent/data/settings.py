"""Where a node keeps its cache, and how large it may become. Pure, but for a look at the disks."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from stoker.agent.endings import Broken

_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")


@dataclass(frozen=True, slots=True)
class CacheSettings:
    root: Path
    limit_bytes: int | None = None  # None: as much as the disk has, but for a part that is kept free


def cache_settings(variables: Mapping[str, str], default: Path) -> CacheSettings:
    """`STOKER_CACHE` may name several folders with `:` between: the one on the fastest disk is taken."""
    named = [Path(name).expanduser() for name in variables.get("STOKER_CACHE", "").split(os.pathsep) if name]
    if wrong := [str(folder) for folder in named if not folder.is_absolute()]:
        raise Broken(f"STOKER_CACHE is `{wrong[0]}`, expected a path that begins with `/`")
    limit = variables.get("STOKER_CACHE_LIMIT", "")
    return CacheSettings(min(named, key=_slowness, default=default), size_of(limit) if limit else None)


def size_of(text: str) -> int:
    """`100GB`, `1.5TB`, `512MiB`, or bytes. Raises Broken."""
    found = _SIZE.fullmatch(text.strip())
    unit = _UNITS.get(found[2].upper()) if found else None
    if not found or unit is None:
        raise Broken(f"STOKER_CACHE_LIMIT is `{text}`, expected a size such as `100GB`")
    return int(float(found[1]) * unit)


def _slowness(folder: Path) -> int:
    """By what the kernel says of the disk: memory, NVMe, other flash, what is unknown, and last what turns."""
    while not folder.exists():
        folder = folder.parent
    number = folder.stat().st_dev
    device = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}")
    if not device.exists():
        return 0 if os.major(number) == 0 and _is_memory(folder) else 3
    real = device.resolve()
    disk = real if (real / "queue").is_dir() else real.parent  # a partition is part of its disk
    try:
        turns = (disk / "queue" / "rotational").read_text().strip() == "1"
    except OSError:
        return 3
    return 4 if turns else 1 if disk.name.startswith("nvme") else 2


def _is_memory(folder: Path) -> bool:
    try:
        lines = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return False
    kinds = {line.split()[1]: line.split()[2] for line in lines}
    place = next((str(one) for one in (folder, *folder.parents) if str(one) in kinds), "/")
    return kinds.get(place) == "tmpfs"
