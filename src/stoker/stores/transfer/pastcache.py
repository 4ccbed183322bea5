"""A large file of this computer, read past the system's cache. Standard library only: agents carry this file.

Whoever reads a file once has no use for it in the cache, and finding room there takes longer than reading it.
"""

from __future__ import annotations

import io
import mmap
import os
from collections.abc import Iterator
from itertools import cycle

PIECE_BYTES = 1 << 20  # small enough to be hashed and written while it is in the processor's cache


def read_past_cache(file: io.FileIO, size: int, rooms: int = 1) -> Iterator[memoryview]:
    """Its pieces from the beginning, fewer than `size` bytes where it ends before. Each is good until as many more as
    there are `rooms` were asked for. What is in the cache already is read from there."""
    ring = cycle([memoryview(mmap.mmap(-1, PIECE_BYTES)) for _ in range(rooms)])
    past_cache = not _is_cached(file) and _set(file, True)
    at = 0
    while at < size:
        room = next(ring)[: size - at]
        if past_cache and (len(room) < PIECE_BYTES or at % mmap.PAGESIZE):  # which only the cache can do
            past_cache = _set(file, False)
        try:
            count = file.readinto(room)
        except OSError:
            if not past_cache:
                raise
            past_cache = _set(file, False)  # some disks refuse only now
            continue
        if not count:
            return
        yield room[:count]
        at += count


def _is_cached(file: io.FileIO) -> bool:
    """As far as its first byte tells: a file that was just written is, and the disk would have to be waited for."""
    try:
        return os.preadv(file.fileno(), [bytearray(1)], 0, os.RWF_NOWAIT) > 0
    except (AttributeError, OSError):  # it would have to be read, or the system cannot tell
        return False


def _set(file: io.FileIO, past_cache: bool) -> bool:
    """Whether it is read past the cache now: not every system and not every disk can."""
    try:
        import fcntl

        flags = fcntl.fcntl(file, fcntl.F_GETFL)
        fcntl.fcntl(file, fcntl.F_SETFL, flags | os.O_DIRECT if past_cache else flags & ~os.O_DIRECT)
    except (ImportError, AttributeError, OSError):
        return False
    return past_cache
