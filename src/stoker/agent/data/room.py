"""Room in the cache: what each node says it uses, and what may go so that something new fits.

A content may go when no tree of a run links to it, which the kernel counts, and no living node has said that it wants
it. The one that was used longest ago goes first.
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

SPARE_BYTES = 256 << 20  # left free on the disk for everybody else, whatever happens
KEEP_FREE = 0.05  # of the disk stays free as long as there is something in the cache that may go

Wants = Mapping[str, int]  # sizes by hash


@dataclass(frozen=True, slots=True)
class Held:
    """One content of the cache. `used_ns` is when it was last used."""

    sha256: str
    size_bytes: int
    used_ns: int
    links: int


class Hold:
    """One node's part of the cache: its lock is held as long as its agent lives, however that ends."""

    def __init__(self, cache: Cache, key: str) -> None:
        self._cache = cache
        self.folder = cache.runs / key
        self.trees = self.folder / "data"
        self._wants = self.folder / "wants"
        self._lock = -1

    def take(self) -> None:
        """Begins with nothing: what an earlier agent of this key left is removed."""
        self._cache.make()
        with lock.held(self._cache.root / "lock"):  # nobody takes it for a dead one's between its making and its lock
            self.folder.mkdir(exist_ok=True, mode=0o700)
            descriptor = lock.claim(self.folder / "lock", timeout_s=None)
            assert descriptor is not None
            self._lock = descriptor
        unmount_below(self.folder)
        remove_tree(self.trees)
        self.trees.mkdir(mode=0o700)

    def release(self) -> None:
        """Twice is fine."""
        remove_hold(self.folder)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def reserve(self, wanted: Wants, limit_bytes: int | None) -> None:
        """Makes room for those of the contents that are not there, and keeps all of them from being removed as long as
        this node lives. Raises StoreFailed, with the figures, where there is no room to be had."""
        with lock.held(self._cache.root / "lock"):
            part = self._wants.with_suffix(".part")
            part.write_text("".join(f"{sha256} {size}\n" for sha256, size in wanted.items()))
            part.replace(self._wants)
            _make_room(self._cache, limit_bytes)


def remove_hold(folder: Path) -> None:
    """What a node used, mounts first: those may be read-only, or of a process that is dead."""
    unmount_below(folder)
    remove_tree(folder)


def to_remove(held: Collection[Held], wanted: Wants, limit_bytes: float) -> list[str]:
    """Which contents have to go so that all that is wanted fits, the longest unused first. Pure."""
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
    """Under the lock of the cache. Without a limit the cache may fill the disk, but for a part that is kept free."""
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
            f"the data needs {gigabytes(needed)} more in the cache, which may hold {gigabytes(limit_bytes)} and has "
            f"{gigabytes(used)} in use",
            hint="raise STOKER_CACHE_LIMIT, or use `mode: mount`",
        )
    free = _disk(cache)[0] + _on_their_way(cache, wanted)
    if needed > free - SPARE_BYTES:
        raise StoreFailed(
            f"the data needs {gigabytes(needed)} more on the disk of {cache.root}, which has {gigabytes(free)} free",
            hint="free some space, set STOKER_CACHE to a folder on a larger disk, or use `mode: mount`",
        )


def room(cache: Cache, limit_bytes: int | None) -> int:
    """How much could be fetched into the cache if everything that may go went."""
    known = held(cache)
    stays = sum(one.size_bytes for one in known if one.links > 1)
    most = sum(one.size_bytes for one in known) + _disk(cache)[0] - SPARE_BYTES
    return max(min(most, most if limit_bytes is None else limit_bytes) - stays, 0)


def _disk(cache: Cache) -> tuple[int, int]:
    """Bytes that are free for this user, and bytes in all."""
    seen = os.statvfs(cache.root)
    return seen.f_bavail * seen.f_frsize, seen.f_blocks * seen.f_frsize


def _on_their_way(cache: Cache, wanted: Wants) -> int:
    """Bytes of parts: they are on the disk already."""
    total = 0
    for part in cache.parts.iterdir():
        with suppress(FileNotFoundError):
            total += part.stat().st_size if part.name in wanted else 0
    return total


def gigabytes(size_bytes: float) -> str:
    return f"{size_bytes / 1e9:.1f} GB" if size_bytes >= 1e8 else f"{size_bytes / 1e6:.1f} MB"


def _wanted_by_the_living(cache: Cache) -> Iterator[tuple[str, int]]:
    """What a node had whose agent is dead is removed: whoever is to end it has been told already, or never will."""
    for folder in sorted(cache.runs.iterdir()):
        if not lock.is_held(folder / "lock"):
            remove_hold(folder)
            continue
        with suppress(FileNotFoundError):
            for line in (folder / "wants").read_text().splitlines():
                sha256, size = line.split()
                yield sha256, int(size)


def _drop_parts(cache: Cache, wanted: Wants) -> None:
    """What was left half-way, and nobody wants any more."""
    for part in cache.parts.iterdir():
        if part.name not in wanted:
            with cache.fetching(part.name) as mine:
                if mine:
                    cache.drop_part(part.name)
