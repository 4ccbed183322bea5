"""Stored objects as files: one, read a piece at a time, or many in order, with small ones read in advance."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, BinaryIO

from stoker.stores import NEAR, Store, pacing

PIECE_BYTES = 4 << 20
SMALL_BYTES = 4 << 20
_AHEAD = 8  # so at most 32 MB wait in memory

Wanted = tuple[str, int]  # a key, and how many bytes it has


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


def open_in_order(store: Store, wanted: Iterable[Wanted]) -> Iterator[BinaryIO]:
    """Read each before requesting the next. Raises errors of the store at the turn of the object."""
    if pacing(store) is NEAR:
        for key, _ in wanted:
            yield open_object(store, key)
        return
    with ThreadPoolExecutor(_AHEAD, "ahead") as threads:
        waiting: deque[tuple[str, Future[bytes] | None]] = deque()
        for key, size in wanted:
            waiting.append((key, threads.submit(store.get, key, 0, size) if size <= SMALL_BYTES else None))
            if len(waiting) >= _AHEAD:
                yield _opened(store, *waiting.popleft())
        while waiting:
            yield _opened(store, *waiting.popleft())


def _opened(store: Store, key: str, fetched: Future[bytes] | None) -> BinaryIO:
    return io.BytesIO(fetched.result()) if fetched else open_object(store, key)
