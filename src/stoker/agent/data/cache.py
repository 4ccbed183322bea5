"""Contents that runs have read, cached on the node by hash and shared by all of its runs.

    objects/<aa>/<sha256>   verified contents: trusted by their marks, or hashed again
    parts/<name>            incomplete downloads; only the holder of a part's lock writes it
    pins/<aa>/<id>          the content of something without a hash: `<sha256> <size>`
    runs/<key>/             what one node uses: its lock, its wants, its trees of hard links into `objects`

All processes of the computer may use it concurrently, and may be killed at any moment. A content exists completely or
not at all.

Space in the cache: what each node uses, and what may be evicted to make space.

A content may be evicted when no tree of a run links to it, which the kernel counts, and no live node wants it. The
least recently used goes first.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from stoker import files
from stoker.agent.data.mounts import unmount_below
from stoker.agent.machine.machine import remove_tree
from stoker.errors import StoreFailed
from stoker.files import take, write_whole
from stoker.model.cause import Cause

_PIECE_BYTES = 4 << 20
_PIN = re.compile(r"([0-9a-f]{64}) (\d+)\n")


class Cache:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.objects = root / "objects"
        self.parts = root / "parts"
        self.pins = root / "pins"
        self.runs = root / "runs"
        self.repaired: list[str] = []  # hashes of contents that were damaged, and removed

    def make(self) -> None:
        for folder in (self.objects, self.parts, self.pins, self.runs):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def object(self, sha256: str) -> str:
        return f"{self.objects}/{sha256[:2]}/{sha256}"

    def has(self, sha256: str, size_bytes: int) -> bool:
        """True: the content exists and is intact. A content that was changed by hand is detected here, and removed."""
        path = self.object(sha256)
        try:
            seen = os.stat(path)  # noqa: PTH116  # once for each file of a dataset
        except FileNotFoundError:
            return False
        if is_trusted(seen, sha256, size_bytes):
            return True
        if seen.st_size == size_bytes and hash_of(path) == sha256:
            set_mark(path, sha256, NOT_YET)
            self.settle([sha256], whole_disk=False)
            return True
        self.repaired.append(sha256)
        with suppress(FileNotFoundError):
            os.unlink(path)  # noqa: PTH108  # as above
        return False

    @contextmanager
    def fetching(self, name: str) -> Iterator[BinaryIO | None]:
        """The part to write, with what an earlier process left in it; None: another process is downloading it.

        It is named by its hash or, where that is unknown, by the hash of its pin.

        `commit` before leaving; otherwise the written bytes stay, so that another process can continue.
        """
        path = self.parts / name
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "r+b", buffering=0) as part:
            try:
                # The previous holder of the lock may have finished or removed the part.
                mine = take(fd) and os.path.samestat(os.fstat(fd), os.stat(path))  # noqa: PTH116
            except FileNotFoundError:
                mine = False
            yield part if mine else None

    def commit(self, name: str, sha256: str) -> None:
        """The part becomes the content. Only for the holder of its lock, who has verified every byte."""
        part = f"{self.parts}/{name}"
        set_mark(part, sha256, NOT_YET)
        place = self.object(sha256)
        os.makedirs(os.path.dirname(place), mode=0o700, exist_ok=True)  # noqa: PTH103, PTH120
        os.rename(part, place)  # noqa: PTH104  # as above

    def drop_part(self, name: str) -> None:
        """Only for the holder of its lock."""
        with suppress(FileNotFoundError):
            (self.parts / name).unlink()

    def settle(self, hashes: list[str], *, whole_disk: bool = True) -> None:
        """Returns when these contents are flushed to disk, and marks each. Contents without the mark are hashed before
        their next use, so this may be skipped."""
        if whole_disk and hashes:
            os.sync()
        for sha256 in hashes:
            with suppress(FileNotFoundError):
                path = self.object(sha256)
                if not whole_disk:
                    _flush(path)
                os.chmod(path, ON_DISK)  # noqa: PTH101  # one for each file of a dataset

    def use(self, sha256: str, path: str) -> None:
        """Makes `path` that content, by a hard link where the file system supports them. Raises FileNotFoundError where
        the content has been removed."""
        source = self.object(sha256)
        os.utime(source, ns=(time.time_ns(), mark_ns(sha256)))  # the time of use, for eviction
        link(source, path)

    def pinned(self, id: str) -> tuple[str, int] | None:
        """Hash and size of the content for this id; None: unknown."""
        try:
            found = _PIN.fullmatch((self.pins / id[:2] / id).read_text())
        except (FileNotFoundError, UnicodeDecodeError):
            return None
        return (found[1], int(found[2])) if found else None

    def pin(self, id: str, sha256: str, size_bytes: int) -> None:
        place = self.pins / id[:2] / id
        place.parent.mkdir(mode=0o700, exist_ok=True)
        write_whole(place, f"{sha256} {size_bytes}\n")


def link(source: str, path: str) -> None:
    """A hard link, or a copy where that is impossible: other file systems, or a file with 65,000 links."""
    try:
        os.link(source, path)  # one for each file of a dataset
    except FileNotFoundError:
        raise
    except OSError:
        import shutil  # here, because it is slow to import and seldom needed

        shutil.copyfile(source, path)
        os.chmod(path, ON_DISK)  # noqa: PTH101  # as above


def hash_of(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123  # as above
        while piece := file.read(_PIECE_BYTES):
            digest.update(piece)
    return digest.hexdigest()


def _flush(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


# How a file records that its content matches its name, so that trusting it costs one `stat`.
#
# Verified content gets a modification time derived from its hash, far in the past. Any later write changes that time.
# Its mode says whether the bytes are flushed to disk: after a power cut, a file may have its size and times, but not
# its content.

ON_DISK = 0o444
NOT_YET = 0o440
_FIRST = 1_000_000_000  # in the year 2001; the last one is in 2018
_SPAN = 1 << 28


def mark_ns(sha256: str) -> int:
    """Whole, even seconds: every file system can store them."""
    return (_FIRST + 2 * (int(sha256[:8], 16) % _SPAN)) * 10**9


def set_mark(path: str, sha256: str, mode: int) -> None:
    """For a file whose content has just been verified."""
    seen = os.stat(path)  # noqa: PTH116  # one for each file of a dataset
    os.utime(path, ns=(seen.st_atime_ns, mark_ns(sha256)))
    os.chmod(path, mode)  # noqa: PTH101  # as above


def is_trusted(seen: os.stat_result, sha256: str, size_bytes: int) -> bool:
    """False only means that the content must be hashed again."""
    unchanged = seen.st_size == size_bytes and seen.st_mtime_ns == mark_ns(sha256)
    return unchanged and stat.S_IMODE(seen.st_mode) == ON_DISK


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
        with files.held(self._cache.root / "lock"):  # else it could be mistaken for a dead one's before it is locked
            self.folder.mkdir(exist_ok=True, mode=0o700)
            descriptor = files.claim(self.folder / "lock", timeout_s=None)
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
        with files.held(self._cache.root / "lock"):
            files.write_whole(self._wants, "".join(f"{sha256} {size}\n" for sha256, size in wanted.items()))
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
            cause=Cause.CACHE_FULL,
        )
    free = _disk(cache)[0] + _on_their_way(cache, wanted)
    if needed > free - SPARE_BYTES:
        raise StoreFailed(
            f"the data needs {gigabytes(needed)} more on the disk of {cache.root}, which has {gigabytes(free)} free",
            hint="free some space, set STOKER_CACHE to a folder on a larger disk, or use `mode: mount`",
            cause=Cause.DISK_FULL,
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
        if not files.is_held(folder / "lock"):
            remove_hold(folder)
            continue
        with suppress(FileNotFoundError):
            for line in (folder / "wants").read_text().splitlines():
                sha256, size = line.split()
                yield sha256, int(size)


def _drop_parts(cache: Cache, wanted: Wants) -> None:
    """Partial downloads that are no longer needed."""
    for part in cache.parts.iterdir():
        if part.name not in wanted:
            with cache.fetching(part.name) as mine:
                if mine:
                    cache.drop_part(part.name)
