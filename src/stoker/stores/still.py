"""A file whose hash is known, and which has held still since: it can be sent without being hashed again.

Standard library only: agents may carry this file.
"""

from __future__ import annotations

import io
import os
from typing import Any

from stoker.errors import Corrupt

Mark = tuple[int, int, int, int]  # size, times of the last change of content and of status, inode


def mark_of(status: os.stat_result) -> Mark:
    return (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


class Still(io.RawIOBase):
    """The read that reaches the end raises Corrupt if the file was written to meanwhile: whoever copies this to a place
    and then commits it commits what was hashed, or nothing."""

    def __init__(self, source: io.FileIO, sha256: str, mark: Mark) -> None:
        super().__init__()
        self.sha256 = sha256
        self.left = mark[0]
        self._source = source
        self._mark = mark

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

    def _count(self, size: int, wanted: int) -> None:
        self.left -= size
        ended_early = bool(wanted) and not size
        if ended_early or (not self.left and mark_of(os.fstat(self._source.fileno())) != self._mark):
            raise Corrupt("the file was written to while it was read")
