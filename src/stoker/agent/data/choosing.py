"""Mount or download? A decision from what was measured and counted. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from stoker.model.job import DataMode

WAIT_S = 60.0  # a download that takes no longer is always worth it
LONG_WAIT_S = 600.0  # one that takes longer keeps the script waiting for too long
SMALL_FILE_BYTES = 1_000_000  # below this, finding a file takes longer than reading it
AT_ONCE = 16  # files that are fetched side by side
_EPOCHS = re.compile(r"--?(?:num[-_]|n[-_]|max[-_]|train[-_])*epochs?[= ]+(\d+)\b")


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of an input, its store and the node."""

    files: int
    size_bytes: int
    to_fetch_bytes: int  # without what is in the cache already
    to_fetch_files: int
    room_bytes: int  # that the cache could take
    bytes_per_s: float
    latency_s: float
    can_mount: bool
    why_not: str = ""  # it cannot be mounted
    epochs: int | None = None  # None: unknown

    @property
    def download_s(self) -> float:
        return self.to_fetch_bytes / max(self.bytes_per_s, 1.0) + self.to_fetch_files * self.latency_s / AT_ONCE


@dataclass(frozen=True, slots=True)
class Choice:
    mode: DataMode
    reason: str


def choose(facts: Facts) -> Choice:
    """How `auto` reads it, and why, in words."""
    takes = f"about {_seconds(facts.download_s)} at {_rate(facts.bytes_per_s)}"
    average = facts.size_bytes / max(facts.files, 1)
    if not facts.to_fetch_files:
        return Choice(DataMode.DOWNLOAD, "all of it is in the cache of this node")
    if not facts.can_mount:
        return Choice(DataMode.DOWNLOAD, f"{facts.why_not}; fetching takes {takes}")
    if facts.to_fetch_bytes > facts.room_bytes:
        room = f"{facts.to_fetch_bytes / 1e9:.1f} GB do not fit into the {facts.room_bytes / 1e9:.1f} GB there are"
        return Choice(DataMode.MOUNT, f"{room} on this node")
    if facts.download_s <= WAIT_S:
        return Choice(DataMode.DOWNLOAD, f"fetching takes {takes}")
    if average < SMALL_FILE_BYTES:
        each = f"{facts.files:,} files of {average / 1e3:.0f} kB: opening each over the network costs "
        return Choice(DataMode.DOWNLOAD, f"{each}{facts.latency_s * 1e3:.0f} ms; fetching takes {takes}")
    if facts.epochs == 1:
        return Choice(DataMode.MOUNT, f"it is read once, and fetching it first would take {takes}")
    if facts.download_s > LONG_WAIT_S:
        return Choice(DataMode.MOUNT, f"fetching it first would take {takes}; what is read stays on the disk")
    again = f"{facts.epochs} times" if facts.epochs else "more than once"
    return Choice(DataMode.DOWNLOAD, f"it is likely read {again}; fetching takes {takes}")


def epochs_of(command: str) -> int | None:
    """How often a script reads its data, as far as its command says so."""
    found = _EPOCHS.search(command)
    return int(found[1]) if found else None


def _seconds(seconds: float) -> str:
    if seconds < 1:
        return "a second"
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _rate(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e9:.1f} GB/s" if bytes_per_s >= 1e9 else f"{bytes_per_s / 1e6:.0f} MB/s"
