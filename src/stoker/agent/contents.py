"""Contents of files in the store, by their hash: each put there once, and only if it held still while it was read."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from typing import BinaryIO, cast

from stoker.errors import Corrupt, Missing
from stoker.stores import Store
from stoker.stores.verified import Verified

SMALL_BYTES = 4 << 20  # up to here a file is read once, into memory

Mark = tuple[int, ...]


class Changing(Exception):
    """The file was written to while it was read."""


def mark_of(status: os.stat_result) -> Mark:
    """The same mark means the same content, for files that have been quiet for longer than a tick of the kernel."""
    return (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


class Contents:
    """For one thread. `key` says where a hash lies; `first`: nobody else can have put anything there yet; `alone`:
    nobody else can come to count on what is there."""

    def __init__(self, store: Store, key: Callable[[str], str], *, alone: bool, first: bool) -> None:
        self._store = store
        self._key = key
        self._alone = alone
        self._first = first
        self._there: set[str] = set()
        self._own: set[str] = set()  # put there by this agent
        self._unused: dict[str, float] = {}

    def ship(self, place: str, mark: Mark) -> str:
        """Puts the file's content into the store where it is not there yet, and returns its hash."""
        fd = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb", buffering=0) as file:
            if mark[0] <= SMALL_BYTES:
                data = file.read(SMALL_BYTES + 1)
                _check(file, mark, len(data))
                sha256 = hashlib.sha256(data).hexdigest()
                if not self._has(sha256):
                    self._put(sha256, data)
                return sha256
            reader = _Hashing(file)
            while reader.read(1 << 20):
                pass
            _check(file, mark, reader.size)
            sha256 = reader.hexdigest
            if not self._has(sha256):
                self._put_large(sha256, file, mark)
            return sha256

    def forget(self, used: set[str], after_s: float) -> None:
        """Removes what this agent put there and no file has had for a while: the earlier contents of a file that is
        written again and again. With several nodes another one may have counted on it, so it stays."""
        if not self._alone:
            return
        now = time.monotonic()
        self._unused = {sha256: self._unused.get(sha256, now) for sha256 in self._own - used}
        for sha256 in [sha256 for sha256, since in self._unused.items() if now - since >= after_s]:
            self._store.delete(self._key(sha256))
            self._own.discard(sha256)
            self._there.discard(sha256)

    def _has(self, sha256: str) -> bool:
        if sha256 not in self._there and not self._first:
            try:
                self._store.get(self._key(sha256), 0, 0)
                self._there.add(sha256)
            except Missing:
                pass
        return sha256 in self._there

    def _put(self, sha256: str, data: bytes | BinaryIO) -> None:
        self._store.put(self._key(sha256), data)
        self._there.add(sha256)
        self._own.add(sha256)

    def _put_large(self, sha256: str, file: BinaryIO, mark: Mark) -> None:
        """Reads it a second time. If that does not give what the first time gave, the store never has it: the read
        that finds out fails before the store makes anything visible."""
        file.seek(0)
        try:
            self._put(sha256, cast(BinaryIO, Verified(file, sha256, mark[0])))
        except Corrupt:
            raise Changing from None


class _Hashing:
    """A file that hashes what is read from it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self.size = 0

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self._hash.update(data)
        self.size += len(data)
        return data

    @property
    def hexdigest(self) -> str:
        return self._hash.hexdigest()


def _check(file: BinaryIO, mark: Mark, size: int) -> None:
    if size != mark[0] or mark_of(os.fstat(file.fileno())) != mark:
        raise Changing
