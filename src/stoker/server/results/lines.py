"""Lines that a node appends to a file in the store: read piece by piece, since their length is unknown."""

from __future__ import annotations

from collections.abc import Iterator

from stoker.errors import Missing
from stoker.model.untrusted import LINE_BYTES
from stoker.stores import Store

PIECE_BYTES = 1 << 20
MOST_UNREADABLE = 10_000  # a file with more invalid lines is not read further: each costs time


def lines(store: Store, key: str, most_bytes: int) -> Iterator[bytes]:
    """Complete ones, without line breaks. One that is longer than any of an agent is returned empty; bytes after
    `most_bytes` are not read. None at all where the object does not exist."""
    rest, offset, skipping = b"", 0, False
    while offset < most_bytes and (piece := _piece(store, key, offset)):
        offset += len(piece)
        first, *others = piece.split(b"\n")
        if not others:
            rest, skipping = (b"", True) if skipping or len(rest) + len(first) > LINE_BYTES else (rest + first, False)
            continue
        yield b"" if skipping else rest + first
        yield from others[:-1]
        rest, skipping = others[-1], False


def _piece(store: Store, key: str, offset: int) -> bytes:
    try:
        return store.get(key, offset, PIECE_BYTES)
    except Missing:
        return b""
