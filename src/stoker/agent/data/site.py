"""What data staging needs to know about the node, and the state of each input."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from stoker.agent.attempt.endings import AttemptBroken
from stoker.agent.data.cache import Cache, Hold, gigabytes
from stoker.agent.data.downloading import Tally, Tell
from stoker.agent.data.mounting import Mount
from stoker.model.cause import Cause
from stoker.model.orders import DataOrder, Orders
from stoker.model.run.report import DataFigures
from stoker.stores import Store

if TYPE_CHECKING:
    from stoker.agent.data.sharing import Peers


@dataclass(frozen=True, slots=True)
class DataSite:
    store: Store
    orders: Orders
    cache: Cache
    hold: Hold
    limit_bytes: int | None  # of the cache
    variables: Mapping[str, str]
    shim: Sequence[str]  # the command that replaces `fusermount3`
    check: Callable[[], None]  # raises to stop everything
    tell: Tell  # adds to the timeline
    peers: Peers | None = None  # the other nodes, which need the same contents


@dataclass
class Input:
    """One input during staging. The reporting thread reads it while another works on it."""

    name: str
    order: DataOrder
    top: Path  # the folder it is created in
    way: str = ""  # link, download or mount
    files: int = 0
    size_bytes: int = 0
    cached_bytes: int = 0
    stage_s: float = 0.0
    tally: Tally = field(default_factory=Tally)
    fetched: list[str] = field(default_factory=list)  # hashes that are new in the cache
    mounts: list[tuple[Mount, str]] = field(default_factory=list)  # each with a key that it serves

    def read_bytes(self) -> int:
        """Read from the store so far."""
        return sum(mount.read_bytes() for mount, _ in self.mounts) if self.mounts else self.tally.done_bytes

    def figures(self, waited_s: float, passed_s: float) -> DataFigures:
        """`waited_s` is how long the script waited for mounts, `passed_s` the time since staging started."""
        wait_s = self.stage_s + (waited_s if self.mounts else 0.0)
        return DataFigures(
            way=self.way,
            files=self.files,
            size_bytes=self.size_bytes,
            cached_bytes=self.cached_bytes,
            read_bytes=self.read_bytes(),
            stage_s=self.stage_s,
            wait_s=wait_s,
            wait_share=min(wait_s / passed_s, 1.0) if passed_s > 0 else 0.0,
        )

    def words(self) -> str:
        """How it got to the node."""
        files = "1 file" if self.files == 1 else f"{self.files:,} files"
        what = f"`{self.name}`: {self.order.label}, {files}, {gigabytes(self.size_bytes)}"
        took = f"in {self.stage_s:.2f} s"
        if self.way == "link":
            return f"{what}, linked {took}: nothing was copied"
        if self.way == "mount":
            return f"{what}, mounted {took}"
        read, passed = self.read_bytes(), self.tally.passed_bytes
        if not read and not passed:
            return f"{what}, from the cache of this node {took}"
        shared = f", of which {gigabytes(passed)} from other nodes" if passed else ""
        rest = ", the rest from the cache" if self.cached_bytes else ""
        rate = (read + passed) / max(self.stage_s, 1e-9) / 1e9
        return f"{what}, {gigabytes(read + passed)} downloaded {took} ({rate:.2f} GB/s){shared}{rest}"


# Where a node has its cache, and how large it may become. Pure, except for a look at the disks.

_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")


@dataclass(frozen=True, slots=True)
class CacheSettings:
    root: Path
    limit_bytes: int | None = None  # None: the whole disk, except for a part that is kept free


def cache_settings(variables: Mapping[str, str], default: Path) -> CacheSettings:
    """`STOKER_CACHE` may name several folders separated by `:`: the one on the fastest disk is used."""
    named = [Path(name).expanduser() for name in variables.get("STOKER_CACHE", "").split(os.pathsep) if name]
    if wrong := [str(folder) for folder in named if not folder.is_absolute()]:
        raise AttemptBroken(
            f"STOKER_CACHE is `{wrong[0]}`, expected a path that begins with `/`", cause=Cause.CACHE_SETTING
        )
    limit = variables.get("STOKER_CACHE_LIMIT", "")
    return CacheSettings(min(named, key=_slowness, default=default), size_of(limit) if limit else None)


def size_of(text: str) -> int:
    """`100GB`, `1.5TB`, `512MiB`, or bytes. Raises Broken."""
    found = _SIZE.fullmatch(text.strip())
    unit = _UNITS.get(found[2].upper()) if found else None
    if not found or unit is None:
        raise AttemptBroken(
            f"STOKER_CACHE_LIMIT is `{text}`, expected a size such as `100GB`", cause=Cause.CACHE_SETTING
        )
    return int(float(found[1]) * unit)


def _slowness(folder: Path) -> int:
    """By the kernel's disk information: memory, NVMe, other flash, unknown, and last rotating disks."""
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
