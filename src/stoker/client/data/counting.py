"""A store that reports every chunk that is uploaded or downloaded, so that large files show progress, too."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, cast

from stoker.stores import Store, Stored
from stoker.stores.transfer.still import Still
from stoker.stores.transfer.verified import known_hash


class CountedStore(Store):
    """`told` receives the number of bytes; for those that did not arrive, again as a negative number."""

    def __init__(self, store: Store, told: Callable[[int], None]) -> None:
        self._store = store
        self._told = told
        self.url = store.url
        self.at_once = store.at_once

    def get(self, key: str, start: int = 0, size: int | None = None) -> bytes:
        data = self._store.get(key, start, size)
        self._told(len(data))
        return data

    def stream(self, key: str, start: int, size: int) -> Iterator[memoryview]:
        for piece in self._store.stream(key, start, size):
            self._told(len(piece))
            yield piece

    def put(self, key: str, data: bytes | BinaryIO, *, only_new: bool = False) -> None:
        if isinstance(data, bytes):
            self._store.put(key, data, only_new=only_new)
            self._told(len(data))
            return
        if isinstance(data, Still):
            self._put_still(key, data, only_new)
            return
        source = _Source(data, self._told)
        try:
            self._store.put(key, cast(BinaryIO, source), only_new=only_new)
        except BaseException:
            self._told(-source.read_bytes)
            raise

    def _put_still(self, key: str, data: Still, only_new: bool) -> None:
        """It is not wrapped: a store may take it in regions."""
        went = 0
        lock = threading.Lock()

        def told(size: int) -> None:
            nonlocal went
            with lock:
                went += size
            self._told(size)

        data.told = told
        try:
            self._store.put(key, cast(BinaryIO, data), only_new=only_new)
        except BaseException:
            self._told(-went)
            raise

    def append(self, key: str, offset: int, data: bytes) -> int:
        return self._store.append(key, offset, data)

    def list(self, prefix: str) -> Iterator[Stored]:
        return self._store.list(prefix)

    def delete(self, key: str) -> None:
        self._store.delete(key)

    @property
    def near(self) -> bool:
        return self._store.near


class _Source(io.RawIOBase):
    def __init__(self, source: BinaryIO, told: Callable[[int], None]) -> None:
        super().__init__()
        self._source = source
        self._told = told
        self.read_bytes = 0
        self.sha256 = known_hash(source)
        self.left = getattr(source, "left", None)

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1, /) -> bytes:
        data = self._source.read(-1 if size is None else size) or b""
        self._count(len(data))
        return data

    def readinto(self, buffer: Any, /) -> int:
        size: int = self._source.readinto(buffer)  # type: ignore[attr-defined]  # raw files have it
        self._count(size)
        return size

    def _count(self, size: int) -> None:
        self.read_bytes += size
        self._told(size)
