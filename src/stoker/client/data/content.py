"""Content on its way to and from a store: counted chunk by chunk, and verified."""

from __future__ import annotations

import hashlib
import io
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from itertools import islice, takewhile
from typing import Any, BinaryIO, NamedTuple, cast

from stoker.client.progress import TransferProgress
from stoker.errors import Missing
from stoker.model.dataset import DataFile
from stoker.stores import Store, Stored
from stoker.stores.transfer.verified import Still, known_hash


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


_THREADS = 8
_PIECE_BYTES = 4 << 20
_BATCH = 512  # files given to the threads at once: a million need not all be in memory


class Wrong(StrEnum):
    MISSING = "missing"
    DAMAGED = "damaged"  # other bytes than were stored
    CHANGED = "changed"  # a file registered in place that has changed since


class ContentFault(NamedTuple):
    path: str
    wrong: Wrong
    key: str
    sha256: str


def verify(
    store: Store, name: str, files: Sequence[DataFile], progress: TransferProgress, *, quick: bool = False
) -> list[ContentFault]:
    """Every wrong content, once for every path that has it. With `quick` sizes are compared and nothing is read. Files
    in place are compared only by size and etag."""
    in_place = [file for file in files if file.key]
    contents = [file for file in files if not file.key]
    progress.begin("verifying", len(files), sum(file.size_bytes for file in files))
    found = [*_listed(store, name, in_place, progress)]
    found += _listed(store, name, contents, progress) if quick else _read(store, name, contents, progress.moved)
    return sorted(found)


def faults(store: Store, name: str, files: Sequence[DataFile]) -> list[ContentFault]:
    """The contents that are missing or damaged; everything is read."""
    return list(_read(store, name, files, lambda *_: None))


def _listed(store: Store, name: str, files: Sequence[DataFile], progress: TransferProgress) -> Iterator[ContentFault]:
    """With one listing of their common prefix."""
    if not files:
        return
    wanted = {file.stored_in(name) for file in files}
    seen = {stored.key: stored for stored in store.list(_shared_folder(wanted)) if stored.key in wanted}
    for file in files:
        stored = seen.get(file.stored_in(name))
        progress.skipped(file.size_bytes, 1)
        if stored is None:
            yield _fault(name, file, Wrong.MISSING)
        elif stored.size_bytes != file.size_bytes or (file.key and stored.etag != file.etag):
            yield _fault(name, file, Wrong.CHANGED if file.key else Wrong.DAMAGED)


def _read(
    store: Store, name: str, files: Sequence[DataFile], told: Callable[[int, int], None]
) -> Iterator[ContentFault]:
    by_hash: dict[str, list[DataFile]] = {}
    for file in files:
        by_hash.setdefault(file.sha256, []).append(file)

    def look(same: list[DataFile]) -> Wrong | None:
        wrong = _content(store, name, same[0], told)
        told((len(same) - 1) * same[0].size_bytes, len(same))
        return wrong

    waiting = iter(by_hash.values())
    with ThreadPoolExecutor(_THREADS) as threads:
        while batch := list(islice(waiting, _BATCH)):
            for same, wrong in zip(batch, threads.map(look, batch), strict=True):
                if wrong:
                    yield from (_fault(name, file, wrong) for file in same)


def _content(store: Store, name: str, file: DataFile, told: Callable[[int, int], None]) -> Wrong | None:
    digest, key = hashlib.sha256(), file.stored_in(name)
    at = 0
    try:
        while piece := store.get(key, at, _PIECE_BYTES):
            digest.update(piece)
            at += len(piece)
            told(len(piece), 0)
            if len(piece) < _PIECE_BYTES or at > file.size_bytes:
                break
    except Missing:
        return Wrong.MISSING
    return None if digest.hexdigest() == file.sha256 and at == file.size_bytes else Wrong.DAMAGED


def _shared_folder(keys: Collection[str]) -> str:
    first, last = min(keys).split("/")[:-1], max(keys).split("/")[:-1]
    shared = takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False))
    return "/".join(name for name, _ in shared)


def _fault(name: str, file: DataFile, wrong: Wrong) -> ContentFault:
    return ContentFault(file.path, wrong, file.stored_in(name), file.sha256)
