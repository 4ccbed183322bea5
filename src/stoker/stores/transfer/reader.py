"""A stored object as a file, read a piece at a time: large models need not fit in memory."""

from __future__ import annotations

import io
from typing import Any

from stoker.stores import Store

PIECE_BYTES = 4 << 20


class Reader(io.RawIOBase):
    def __init__(self, store: Store, key: str) -> None:
        super().__init__()
        self._store = store
        self._key = key
        self._at = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        piece = self._store.get(self._key, self._at, len(buffer))
        buffer[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)


def open_object(store: Store, key: str) -> io.BufferedReader:
    return io.BufferedReader(Reader(store, key), PIECE_BYTES)
