"""Contents of files in the store, by their hash: each put there once, and only if it held still while it was read."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import stat
import time
from collections.abc import Callable, Iterable
from typing import BinaryIO, cast

from stoker.errors import Corrupt, Missing
from stoker.stores import Store
from stoker.stores.transfer.still import Mark, Still, mark_of

SMALL_BYTES = 4 << 20  # up to here a file is read once, into memory
PIECE_BYTES = 4 << 20


class Changing(Exception):
    """The file was written to while it was read."""


class Contents:
    """For one thread. `key` says where a hash lies; `first`: nobody else can have put anything there yet; `alone`:
    nobody else can come to count on what is there."""

    def __init__(self, store: Store, key: Callable[[str], str], *, alone: bool, first: bool) -> None:
        self._store = store
        self._key = key
        self._alone = alone
        self._first = first
        self._there: set[str] = set()
        self._own: set[str] = set()  # this agent's to remove
        self._unused: dict[str, float] = {}

    def adopt(self, hashes: Iterable[str]) -> None:
        """Earlier attempts put these there, all that there is. Now they are this agent's to remove."""
        self._own |= set(hashes)
        self._there |= self._own
        self._first = True

    def has(self, sha256: str) -> bool:
        """Known to be there, without asking the store."""
        return sha256 in self._there

    def ship(self, place: str, mark: Mark) -> str:
        """Puts the file's content into the store where it is not there yet, and returns its hash."""
        with open_still(place) as file:
            return self.ship_open(file, mark)

    def ship_open(self, file: io.FileIO, mark: Mark) -> str:
        """The same for a file that is open, and may be gone from its folder by now."""
        if mark[0] <= SMALL_BYTES:
            data = file.read(SMALL_BYTES + 1)
            _check(file, mark, len(data))
            return self.ship_bytes(data)
        sha256 = _hash(file, mark)
        if not self._has(sha256):
            file.seek(0)
            # While it holds still, the second reading gives what the first one did: no need to hash it again.
            still = Still(file, sha256, _of_content(mark), _content_mark)
            try:
                self._put(sha256, cast(BinaryIO, still))
            except Corrupt:
                raise Changing from None
        return sha256

    def ship_bytes(self, data: bytes) -> str:
        """The same for what has been read."""
        sha256 = hashlib.sha256(data).hexdigest()
        if not self._has(sha256):
            self._put(sha256, data)
        return sha256

    def forget(self, used: set[str], after_s: float) -> None:
        """Removes what this agent put there and no file has had for a while: the earlier contents of a file that is
        written again and again. With several nodes another one may have counted on it, so it stays."""
        if not self._alone:
            return
        now = time.monotonic()
        self._unused = {sha256: self._unused.get(sha256, now) for sha256 in self._own - used}
        for sha256 in [sha256 for sha256, since in self._unused.items() if now - since >= after_s]:
            self._there.discard(sha256)  # first: whatever becomes of the delete, it cannot be counted on
            self._store.delete(self._key(sha256))
            self._own.discard(sha256)

    def _has(self, sha256: str) -> bool:
        if sha256 not in self._there and not self._first:
            try:
                self._store.get(self._key(sha256), 0, 0)
                self._there.add(sha256)
            except Missing:
                pass
        return sha256 in self._there

    def _put(self, sha256: str, data: bytes | BinaryIO) -> None:
        self._own.add(sha256)  # even if the put fails: a store may have made it before it failed to say so
        self._store.put(self._key(sha256), data)
        self._there.add(sha256)


def open_still(place: str) -> io.FileIO:
    """Neither follows a link nor waits for whoever may be at the other end of a pipe. Raises OSError for anything but a
    file."""
    fd = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):  # since it was looked at: a folder, or a pipe
            raise OSError(errno.ENXIO, os.strerror(errno.ENXIO), place)
        return io.FileIO(fd, "rb")
    except OSError:
        os.close(fd)
        raise


def _hash(file: io.FileIO, mark: Mark) -> str:
    digest, size, buffer = hashlib.sha256(), 0, memoryview(bytearray(PIECE_BYTES))
    while count := file.readinto(buffer):
        digest.update(buffer[:count])
        size += count
    _check(file, mark, size)
    return digest.hexdigest()


def _check(file: io.FileIO, mark: Mark, size: int) -> None:
    if size != mark[0] or _content_mark(os.fstat(file.fileno())) != _of_content(mark):
        raise Changing


def _content_mark(status: os.stat_result) -> Mark:
    return _of_content(mark_of(status))


def _of_content(mark: Mark) -> Mark:
    """The time of its last change of status is left out: links to it come and go without changing a byte."""
    return (mark[0], mark[1], 0, mark[3])
