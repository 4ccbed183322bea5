"""Bytes with an expected hash, as a file. Standard library only: agents carry this file."""

from __future__ import annotations

import hashlib
import io
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
