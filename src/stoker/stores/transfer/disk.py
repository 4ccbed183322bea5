"""The disk: its errors as ours, large files read without the page cache, and contents read piece by piece, hashed
meanwhile. Stored objects as files, read a piece at a time or, if small, in advance. Standard library only: agents
carry this file."""

from __future__ import annotations

import errno
import hashlib
import io
import mmap
import os
import queue
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import cycle, islice
from typing import Any, BinaryIO

from stoker.errors import Missing, StoreFailed
from stoker.model.cause import Cause
from stoker.stores import NEAR, Store, pacing

_FULL = {errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)}  # Windows has no quota error


def disk_failed(verb: str, what: str, error: OSError) -> StoreFailed:
    if error.errno in _FULL:
        text, hint = f"the disk is full: could not {verb} `{what}`", "free some space, then try again"
        return StoreFailed(text, hint=hint, cause=Cause.DISK_FULL)
    return StoreFailed(f"could not {verb} `{what}`: {error.strerror or error}", cause=Cause.DISK_REFUSED)


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
    return io.BufferedReader(Reader(store, key), _FAR_PIECE_BYTES)


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
                yield _in_advance(store, *waiting.popleft())
        while waiting:
            yield _in_advance(store, *waiting.popleft())


def _in_advance(store: Store, key: str, fetched: Future[bytes] | None) -> BinaryIO:
    return io.BytesIO(fetched.result()) if fetched else open_object(store, key)
