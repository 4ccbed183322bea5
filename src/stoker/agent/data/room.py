"""Space in the cache: what each node uses, and what may be evicted to make space.

A content may be evicted when no tree of a run links to it, which the kernel counts, and no live node wants it. The
least recently used goes first.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from stoker.agent.data.cache import Cache
from stoker.agent.data.mounts import unmount_below
from stoker.agent.machine.machine import remove_tree
from stoker.errors import StoreFailed
from stoker.files import lock

SPARE_BYTES = 256 << 20  # always left free on the disk
KEEP_FREE = 0.05  # of the disk stays free as long as something in the cache may be evicted

Wants = Mapping[str, int]  # sizes by hash


@dataclass(frozen=True, slots=True)
class Held:
    """One content of the cache. `used_ns` is when it was last used."""

    sha256: str
    size_bytes: int
    used_ns: int
    links: int


class Hold:
    """One node's part of the cache: its lock is held as long as its agent lives."""

    def __init__(self, cache: Cache, key: str) -> None:
        self._cache = cache
        self.folder = cache.runs / key
        self.trees = self.folder / "data"
        self._wants = self.folder / "wants"
        self._lock = -1

    def take(self) -> None:
        """Starts empty: what an earlier agent of this key left is removed."""
        self._cache.make()
        with lock.held(self._cache.root / "lock"):  # nobody mistakes it for a dead one's before it is locked
            self.folder.mkdir(exist_ok=True, mode=0o700)
            descriptor = lock.claim(self.folder / "lock", timeout_s=None)
            assert descriptor is not None
            self._lock = descriptor
        unmount_below(self.folder)
        remove_tree(self.trees)
        self.trees.mkdir(mode=0o700)

    def release(self) -> None:
        """Calling it twice is fine."""
        remove_hold(self.folder)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def reserve(self, wanted: Wants, limit_bytes: int | None) -> None:
        """Makes space for missing contents, and protects all of these from eviction as long as this node lives. Raises
        StoreFailed, with the figures, where there is not enough space."""
        with lock.held(self._cache.root / "lock"):
            part = self._wants.with_suffix(".part")
            part.write_text("".join(f"{sha256} {size}\n" for sha256, size in wanted.items()))
            part.replace(self._wants)
            _make_room(self._cache, limit_bytes)


def remove_hold(folder: Path) -> None:
    """What a node used, mounts first: those may be read-only, or belong to a dead process."""
    unmount_below(folder)
    remove_tree(folder)


def to_remove(held: Collection[Held], wanted: Wants, limit_bytes: float) -> list[str]:
    """Which contents to evict so that everything wanted fits, the least recently used first. Pure."""
    there = {one.sha256 for one in held}
    over = sum(one.size_bytes for one in held) - limit_bytes
    over += sum(size for sha256, size in wanted.items() if sha256 not in there)
    gone: list[str] = []
    for one in sorted(held, key=lambda one: one.used_ns):
        if over <= 0:
            break
        if one.links == 1 and one.sha256 not in wanted:
            gone.append(one.sha256)
            over -= one.size_bytes
    return gone


def held(cache: Cache) -> list[Held]:
    found = []
    for group in os.scandir(cache.objects):
        with suppress(FileNotFoundError), os.scandir(group) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    seen = entry.stat(follow_symlinks=False)
                    found.append(Held(entry.name, seen.st_size, seen.st_atime_ns, seen.st_nlink))
    return found


def _make_room(cache: Cache, limit_bytes: int | None) -> None:
    """Under the lock of the cache. Without a limit the cache may fill the disk, except for a part that is kept free."""
    wanted = dict(_wanted_by_the_living(cache))
    known = held(cache)
    free, total = _disk(cache)
    most = sum(one.size_bytes for one in known) + _on_their_way(cache, wanted) + free - SPARE_BYTES
    roomy = most - max(total * KEEP_FREE - SPARE_BYTES, 0)
    for sha256 in to_remove(known, wanted, roomy if limit_bytes is None else min(limit_bytes, roomy)):
        with suppress(FileNotFoundError):
            os.unlink(cache.object(sha256))  # noqa: PTH108  # thousands of them
    _drop_parts(cache, wanted)
    _check(cache, wanted, limit_bytes)


def _check(cache: Cache, wanted: Wants, limit_bytes: int | None) -> None:
    left = held(cache)
    there = {one.sha256 for one in left}
    needed = sum(size for sha256, size in wanted.items() if sha256 not in there)
    if not needed:
        return
    used = sum(one.size_bytes for one in left)
    if limit_bytes is not None and used + needed > limit_bytes:
        raise StoreFailed(
            f"the data needs {gigabytes(needed)} more in the cache; its limit is {gigabytes(limit_bytes)}, of which "
            f"{gigabytes(used)} are in use",
            hint="raise STOKER_CACHE_LIMIT, or use `mode: mount`",
        )
    free = _disk(cache)[0] + _on_their_way(cache, wanted)
    if needed > free - SPARE_BYTES:
        raise StoreFailed(
            f"the data needs {gigabytes(needed)} more on the disk of {cache.root}, which has {gigabytes(free)} free",
            hint="free some space, set STOKER_CACHE to a folder on a larger disk, or use `mode: mount`",
        )


def room(cache: Cache, limit_bytes: int | None) -> int:
    """How much could be downloaded into the cache after evicting everything possible."""
    known = held(cache)
    stays = sum(one.size_bytes for one in known if one.links > 1)
    most = sum(one.size_bytes for one in known) + _disk(cache)[0] - SPARE_BYTES
    return max(min(most, most if limit_bytes is None else limit_bytes) - stays, 0)


def _disk(cache: Cache) -> tuple[int, int]:
    """Bytes available to this user, and bytes in total."""
    seen = os.statvfs(cache.root)
    return seen.f_bavail * seen.f_frsize, seen.f_blocks * seen.f_frsize


def _on_their_way(cache: Cache, wanted: Wants) -> int:
    """Bytes of partial downloads: they are on the disk already."""
    total = 0
    for part in cache.parts.iterdir():
        with suppress(FileNotFoundError):
            total += part.stat().st_size if part.name in wanted else 0
    return total


def gigabytes(size_bytes: float) -> str:
    return f"{size_bytes / 1e9:.1f} GB" if size_bytes >= 1e8 else f"{size_bytes / 1e6:.1f} MB"


def _wanted_by_the_living(cache: Cache) -> Iterator[tuple[str, int]]:
    """Removes what a node with a dead agent used: whoever ends that node already knows, or never will."""
    for folder in sorted(cache.runs.iterdir()):
        if not lock.is_held(folder / "lock"):
            remove_hold(folder)
            continue
        with suppress(FileNotFoundError):
            for line in (folder / "wants").read_text().splitlines():
                sha256, size = line.split()
                yield sha256, int(size)


def _drop_parts(cache: Cache, wanted: Wants) -> None:
    """Partial downloads that nobody wants any more."""
    for part in cache.parts.iterdir():
        if part.name not in wanted:
            with cache.fetching(part.name) as mine:
                if mine:
                    cache.drop_part(part.name)
