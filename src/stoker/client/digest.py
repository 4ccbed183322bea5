"""The hash of a file, and whether the file held still while it was read."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable

_PIECE_BYTES = 1 << 20
_READ = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0)  # Windows has the one, not the other


def digest(path: str, see: Callable[[bytes], None] = lambda _: None) -> tuple[str, os.stat_result, os.stat_result]:
    """The sha256, empty where the size is not the one the file had, with the facts from before and after reading.
    `see` gets the file's beginning: all of it up to a megabyte."""
    file = os.open(path, _READ)
    try:
        before = os.fstat(file)
        hashed = hashlib.sha256()
        size = 0
        wanted = min(before.st_size + 1, _PIECE_BYTES)
        while piece := os.read(file, wanted):
            hashed.update(piece)
            if not size:
                see(piece)
            size += len(piece)
            if len(piece) < wanted:  # the end of a file: nothing else reads short on one
                break
        return hashed.hexdigest() if size == before.st_size else "", before, os.fstat(file)
    finally:
        os.close(file)


def unchanged(one: os.stat_result, other: os.stat_result) -> bool:
    return (one.st_size, one.st_mtime_ns, one.st_ctime_ns) == (other.st_size, other.st_mtime_ns, other.st_ctime_ns)
