"""Bytes with an expected hash, as a file, and files with a known hash that have not changed since. Standard library
only: agents carry this file."""

from __future__ import annotations

import hashlib
import io
import os
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from stoker.errors import Corrupt


class ByteSource(Protocol):
    """`read` returns at most `size` bytes, and none only at the end."""

    def read(self, size: int, /) -> bytes: ...


def known_hash(data: object) -> str:
    """The expected hash of a stream; empty where it has none."""
    return str(getattr(data, "sha256", ""))


class Verified(io.RawIOBase):
    """The next `size` bytes of a source. The read that reaches their end raises Corrupt if they do not have the hash,
    so a caller that copies them and then commits commits the right bytes or nothing."""

    def __init__(self, source: ByteSource, sha256: str, size: int) -> None:
        super().__init__()
        self.sha256 = sha256
        self.left = size
        self._source = source
        self._digest = hashlib.sha256()

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1, /) -> bytes:
        """As many bytes as requested, unless they end earlier."""
        if self.closed:
            raise ValueError("read of closed file")
        wanted = self.left if size is None or size < 0 else min(size, self.left)
        data = self._exactly(wanted)
        self.left -= wanted
        self._digest.update(data)
        if not self.left and self._digest.hexdigest() != self.sha256:
            raise Corrupt(f"the bytes do not have the hash {self.sha256}")
        return data

    def readall(self) -> bytes:
        return self.read()

    def readinto(self, buffer: Any, /) -> int:
        """Straight into the buffer where the source supports it, and then perhaps fewer bytes than fit."""
        if not isinstance(self._source, io.RawIOBase):
            data = self.read(len(buffer))
            buffer[: len(data)] = data
            return len(data)
        room = memoryview(buffer)[: self.left]
        size = (self._source.readinto(room) or 0) if room else 0
        if room and not size:
            raise Corrupt(f"the bytes of {self.sha256} ended {self.left} too early")
        self.left -= size
        self._digest.update(room[:size])
        if not self.left and self._digest.hexdigest() != self.sha256:
            raise Corrupt(f"the bytes do not have the hash {self.sha256}")
        return size

    def _exactly(self, size: int) -> bytes:
        data = self._source.read(size) if size else b""
        if len(data) == size:
            return data
        pieces = [data]
        missing = size - len(data)
        while missing:
            if not pieces[-1]:
                raise Corrupt(f"the bytes of {self.sha256} ended {self.left - size + missing} too early")
            pieces.append(self._source.read(missing))
            missing -= len(pieces[-1])
        return b"".join(pieces)


Mark = tuple[int, int, int, int]  # size, times of the last change of content and of status, inode
_ROOM_BYTES = 512 << 10
_SEND_BYTES = 4 << 20  # between two progress reports
_OF_THREAD = threading.local()


def mark_of(status: os.stat_result) -> Mark:
    """Equal marks mean equal content, for files that are unchanged for longer than a tick of the kernel."""
    return (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


class Still(io.RawIOBase):
    """The read that reaches the end raises Corrupt if the file changed meanwhile: a caller that copies it and then
    commits commits what was hashed, or nothing. It can be read in regions instead, concurrently; then call `check`
    before the commit. `told` gets the bytes as they are read. `look` takes the mark again."""

    def __init__(
        self, source: io.FileIO, sha256: str, mark: Mark, look: Callable[[os.stat_result], Mark] = mark_of
    ) -> None:
        super().__init__()
        self.sha256 = sha256
        self.left = mark[0]
        self.told: Callable[[int], None] = lambda _: None
        self._source = source
        self._mark = mark
        self._look = look

    @property
    def can_be_split(self) -> bool:
        """Where the system cannot read a file at several offsets at once, it must be read sequentially."""
        return hasattr(os, "preadv")

    @property
    def state(self) -> str:
        """A name for the exact state of the file: a file that changed never has it again."""
        return hashlib.sha256(repr(self._mark).encode()).hexdigest()[:8]

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1, /) -> bytes:
        wanted = self.left if size is None or size < 0 else min(size, self.left)
        data = self._source.read(wanted) if wanted else b""
        self._count(len(data), wanted)
        return data

    def readall(self) -> bytes:
        return self.read()

    def readinto(self, buffer: Any, /) -> int:
        room = memoryview(buffer)[: self.left]
        size = self._source.readinto(room) if room else 0
        self._count(size, len(room))
        return size

    def regions(self, size: int) -> Iterator[FileRegion]:
        for start in range(0, self._mark[0], size):
            yield FileRegion(self._source, start, min(size, self._mark[0] - start), self.told)

    def check(self) -> None:
        if self._look(os.fstat(self._source.fileno())) != self._mark:
            raise Corrupt("the file changed while it was read")

    def _count(self, size: int, wanted: int) -> None:
        self.left -= size
        self.told(size)
        if wanted and not size:
            raise Corrupt("the file changed while it was read")
        if not self.left:
            self.check()


class FileRegion:
    """A part of a file, read while it is sent, and again for a retry. Never in memory as a whole."""

    def __init__(self, file: io.FileIO, start: int, size: int, told: Callable[[int], None]) -> None:
        self._file = file
        self._start = start
        self._size = size
        self._told = told
        self._gone = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[memoryview]:
        """Pieces that are valid until the next."""
        self._tell(-self._gone)
        room: memoryview | None = getattr(_OF_THREAD, "room", None)
        if room is None:
            room = _OF_THREAD.room = memoryview(bytearray(_ROOM_BYTES))
        while self._gone < self._size:
            count = os.preadv(self._file.fileno(), [room[: self._size - self._gone]], self._start + self._gone)
            if not count:
                raise Corrupt("the file changed while it was read")
            yield room[:count]
            self._tell(count)

    def send(self, to: socket.socket) -> None:
        """Without copying through this process. Not for an encrypted connection."""
        self._tell(-self._gone)
        with io.FileIO(self._file.fileno(), "rb", closefd=False) as file:  # it changes the file's position
            while self._gone < self._size:
                count = to.sendfile(file, self._start + self._gone, min(_SEND_BYTES, self._size - self._gone))
                if not count:
                    raise Corrupt("the file changed while it was read")
                self._tell(count)

    def skip(self) -> None:
        """It need not be sent."""
        self._tell(self._size - self._gone)

    def _tell(self, size: int) -> None:
        self._gone += size
        self._told(size)
