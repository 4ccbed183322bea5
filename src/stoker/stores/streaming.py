"""A part of a stored object as it comes over the wire, without ever being in memory as a whole.

Standard library only: agents carry this file.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, runtime_checkable

from stoker.stores import Store

PIECE_BYTES = 1 << 20


@runtime_checkable
class Streams(Protocol):
    """A store, or a bucket, that can do this by itself."""

    def stream(self, key: str, start: int, size: int) -> Iterator[memoryview]:
        """Of an object that was put, not appended to. A piece is good until the next one is asked for. Fewer bytes come
        where the object ends before. Raises Missing, and StoreUnavailable where the stream breaks off."""
        ...


def stream(store: Store, key: str, start: int, size: int) -> Iterator[memoryview]:
    """In pieces that are asked for one by one where the store can do no better."""
    if isinstance(store, Streams):
        yield from store.stream(key, start, size)
        return
    for at in range(start, start + size, PIECE_BYTES):
        piece = store.get(key, at, min(PIECE_BYTES, start + size - at))
        yield memoryview(piece)
        if len(piece) < PIECE_BYTES:
            return
