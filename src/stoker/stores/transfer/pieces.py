"""A large content from a store, piece by piece, hashed meanwhile. Standard library only: agents carry this file."""

from __future__ import annotations

import hashlib
import io
import os
import queue
import threading
from collections import deque
from collections.abc import Iterator
from itertools import islice

from stoker.errors import Missing
from stoker.stores import Store
from stoker.stores.transfer.disk import disk_failed
from stoker.stores.transfer.pastcache import read_past_cache

_FAR_PIECE_BYTES = 4 << 20
_AT_ONCE = 4  # concurrent requests to a remote store
_READ = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
_WAITING = 4  # pieces that are read, and not hashed yet


def pieces(store: Store, key: str, size: int) -> Iterator[memoryview]:
    """In order; fewer than `size` bytes where the object ends earlier. Each is valid as long as `Hashing` needs it, and
    then reused."""
    path = store.path(key)
    return _from_disk(_opened(path, key), key, size) if path else _from_afar(store, key, size)


class Hashing:
    """A thread that hashes pieces in order, with a bounded backlog."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self._pieces: queue.Queue[memoryview | None] = queue.Queue(_WAITING)
        self._thread = threading.Thread(target=self._run, name="hashing", daemon=True)
        self._thread.start()

    def put(self, piece: memoryview) -> None:
        self._pieces.put(piece)

    def finish(self) -> str:
        """The hash of all of them."""
        self._pieces.put(None)
        self._thread.join()
        return self._digest.hexdigest()

    def _run(self) -> None:
        while (piece := self._pieces.get()) is not None:
            self._digest.update(piece)


def _opened(path: str, key: str) -> io.FileIO:
    try:
        return io.FileIO(os.open(path, _READ), "rb")
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        raise Missing(f"`{key}` not found in the store") from None
    except OSError as error:
        raise disk_failed("read", key, error) from error


def _from_disk(file: io.FileIO, key: str, size: int) -> Iterator[memoryview]:
    try:
        with file:
            yield from read_past_cache(file, size, _WAITING + 2)
    except OSError as error:
        raise disk_failed("read", key, error) from error


def _from_afar(store: Store, key: str, size: int) -> Iterator[memoryview]:
    """Several concurrent requests, because each has its latency."""
    from concurrent.futures import (
        ThreadPoolExecutor,
    )  # here, because it is slow to import and most agents do not need it

    starts = range(0, size, _FAR_PIECE_BYTES)
    with ThreadPoolExecutor(_AT_ONCE, "pieces") as pool:
        asked = (pool.submit(store.get, key, at, min(_FAR_PIECE_BYTES, size - at)) for at in starts)
        coming = deque(islice(asked, _AT_ONCE))
        while coming:
            piece = coming.popleft().result()
            coming.extend(islice(asked, 1))
            yield memoryview(piece)
