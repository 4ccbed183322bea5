"""Contents that runs have read, cached on the node by hash and shared by all of its runs.

    objects/<aa>/<sha256>   verified contents: trusted by their marks, or hashed again
    parts/<name>            incomplete downloads; only the holder of a part's lock writes it
    pins/<aa>/<id>          the content of something without a hash: `<sha256> <size>`
    runs/<key>/             what one node uses: its lock, its wants, its trees of hard links into `objects`

All processes of the computer may use it concurrently, and may be killed at any moment. A content exists completely or
not at all.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from stoker.files.lock import take
from stoker.files.whole import write_whole

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
