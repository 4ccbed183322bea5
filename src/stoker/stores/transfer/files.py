"""Many files between a disk and a store: concurrently, verified on the way, in bounded memory.

Standard library only: agents may carry this file.
"""

from __future__ import annotations

import hashlib
import io
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from typing import BinaryIO, Generic, NamedTuple, Protocol, TypeVar, cast

from stoker.errors import Corrupt, FileChanged, StoreUnavailable
from stoker.stores import Store
from stoker.stores.transfer.disk import disk_failed
from stoker.stores.transfer.downloading import PIECE_BYTES, Pieces, bring_one
from stoker.stores.transfer.still import Mark, Still, mark_of
from stoker.stores.transfer.verified import Verified

_LARGE_AT_ONCE = 4  # uploads: blocks of some are in memory
TRY_FOR_S = 60.0  # while the store does not answer, or throttles
_FIRST_WAIT_S = 0.5
_LONGEST_WAIT_S = 10.0
_READ = os.O_RDONLY | getattr(os, "O_BINARY", 0)

Told = Callable[[int, int], None]  # bytes and files since the last call; negative: to be transferred again


class Item(NamedTuple):
    """A file at `place` and an object at `key` that have, or will have, the same content. An empty hash is not checked.
    With the mark of the file at the time of hashing, a large one is not hashed again for its upload."""

    place: str
    key: str
    size_bytes: int
    sha256: str
    mark: Mark | None = None


def upload(store: Store, items: Iterable[Item], told: Told | None = None, *, try_for_s: float = TRY_FOR_S) -> None:
    """Raises FileChanged where a file does not have its hash. No object ever has other bytes than its hash says.

    Files uploaded before an error stay: skip them in the next try. `items` may be slow, and is iterated from threads.
    """
    large = threading.Semaphore(_LARGE_AT_ONCE)

    def send(item: Item) -> None:
        with large if item.size_bytes > PIECE_BYTES else nullcontext():
            _patiently(lambda: _send(store, item), try_for_s)

    side_by_side(items, send, told, store.at_once)


def download(store: Store, items: Iterable[Item], told: Told | None = None, *, try_for_s: float = TRY_FOR_S) -> None:
    """Files appear complete and verified, or not at all. Folders are created. An incomplete large file is resumed the
    next time. Raises Corrupt where the store does not have the right bytes, and Missing."""
    items = list(items)
    with Pieces(store, sum(item.size_bytes > PIECE_BYTES for item in items)) as pieces:
        side_by_side(
            items, lambda item: _patiently(lambda: bring_one(pieces, *item[:4]), try_for_s), told, store.at_once
        )


def _send(store: Store, item: Item) -> None:
    try:
        file = os.open(item.place, _READ)
    except OSError as error:
        raise disk_failed("read", item.place, error) from error
    with io.FileIO(file, "rb") as source:
        try:
            if item.size_bytes <= PIECE_BYTES:
                store.put(item.key, _read_small(source, item))
            else:
                _send_large(store, item, source)
        except Corrupt as error:
            raise _changed(item) from error
    # A file that has grown meanwhile has the right bytes in the store; its next reader will notice.


def _send_large(store: Store, item: Item, source: io.FileIO) -> None:
    if item.sha256 and item.mark == mark_of(os.fstat(source.fileno())):
        store.put(item.key, cast(BinaryIO, Still(source, item.sha256, item.mark)))
    elif item.sha256:
        store.put(item.key, cast(BinaryIO, Verified(source, item.sha256, item.size_bytes)))
    else:
        store.put(item.key, source)
    if os.fstat(source.fileno()).st_size != item.size_bytes:
        raise _changed(item)


def _read_small(source: io.FileIO, item: Item) -> bytes:
    try:
        data = source.read(item.size_bytes + 1)
    except OSError as error:
        raise disk_failed("read", item.place, error) from error
    if len(data) != item.size_bytes or (item.sha256 and hashlib.sha256(data).hexdigest() != item.sha256):
        raise _changed(item)
    return data


def _changed(item: Item) -> FileChanged:
    return FileChanged(f"`{item.place}` changed during its upload", hint="try again when nothing writes to it")


def _patiently(work: Callable[[], None], try_for_s: float) -> None:
    """Retries after a while where the store says that this may help."""
    deadline = time.monotonic() + try_for_s
    wait_s = _FIRST_WAIT_S
    while True:
        try:
            return work()
        except StoreUnavailable:
            if time.monotonic() + wait_s > deadline:
                raise
        time.sleep(wait_s)
        wait_s = min(wait_s * 2, _LONGEST_WAIT_S)


class Sized(Protocol):
    @property
    def size_bytes(self) -> int: ...


Each = TypeVar("Each", bound=Sized)


def side_by_side(items: Iterable[Each], work: Callable[[Each], None], told: Told | None, at_once: int) -> None:
    """Raises the first error once running items have ended; no new one starts after it."""
    waiting = _Shared(iter(items))
    failed: list[BaseException] = []

    def carry() -> None:
        try:
            while not failed and (item := waiting.next()) is not None:
                work(item)
                if told:
                    told(item.size_bytes, 1)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=carry, name="stoker-transfer", daemon=True) for _ in range(at_once)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    except BaseException as error:  # Ctrl-C reaches this thread only
        failed.append(error)
        raise
    if failed:
        raise failed[0]


class _Shared(Generic[Each]):
    """One iterator for many threads."""

    def __init__(self, items: Iterator[Each]) -> None:
        self._items = items
        self._lock = threading.Lock()

    def next(self) -> Each | None:
        with self._lock:
            return next(self._items, None)
