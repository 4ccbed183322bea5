"""A large local file, read without the page cache. Standard library only: agents carry this file.

A file that is read once does not benefit from the cache, and making room there takes longer than reading it.
"""

from __future__ import annotations

import io
import mmap
import os
from collections.abc import Iterator
from itertools import cycle

PIECE_BYTES = 1 << 20  # small enough to be hashed and written while it is in the CPU cache


def read_past_cache(file: io.FileIO, size: int, rooms: int = 1) -> Iterator[memoryview]:
    """Its pieces from the start, fewer than `size` bytes where it ends earlier. Each is valid until `rooms` more were
    requested. What is already cached is read from the cache."""
    ring = cycle([memoryview(mmap.mmap(-1, PIECE_BYTES)) for _ in range(rooms)])
    past_cache = not _is_cached(file) and _set(file, True)
    at = 0
    while at < size:
        room = next(ring)[: size - at]
        if past_cache and (len(room) < PIECE_BYTES or at % mmap.PAGESIZE):  # which requires the cache
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
    """Judging by its first byte: a file that was just written is cached, and a direct read would wait for the disk."""
    try:
        return os.preadv(file.fileno(), [bytearray(1)], 0, os.RWF_NOWAIT) > 0
    except (AttributeError, OSError):  # it is not cached, or the system cannot tell
        return False


def _set(file: io.FileIO, past_cache: bool) -> bool:
    """Whether the cache is bypassed now: not every system and disk supports it."""
    try:
        import fcntl

        flags = fcntl.fcntl(file, fcntl.F_GETFL)
        fcntl.fcntl(file, fcntl.F_SETFL, flags | os.O_DIRECT if past_cache else flags & ~os.O_DIRECT)
    except (ImportError, AttributeError, OSError):
        return False
    return past_cache
