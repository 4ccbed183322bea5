"""One object from a store to its place on a disk: large ones in pieces that are asked for ahead, and gone on with.

Standard library only: agents may carry this file.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from types import TracebackType

from stoker.errors import Corrupt
from stoker.stores import Store
from stoker.stores.transfer.disk import disk_failed

PIECE_BYTES = 4 << 20
_PIECES_AT_ONCE = 8  # of all files together
_AHEAD = 3  # of one file: read, and not written yet
_WINDOW_BYTES = 64 << 20  # of one request, where a file has a connection of its own
_CROWD = 3  # large files to come, from which on each has one
_PART = ".stoker-part-"
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
_GO_ON = os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0)


class Pieces:
    """Reads objects ahead of whoever wants them, and no more than fits."""

    def __init__(self, store: Store, large: int) -> None:
        """`large` is how many large objects are to be read in all."""
        self.store = store
        self._to_come = large
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(_PIECES_AT_ONCE, "stoker-pieces")

    def __enter__(self) -> Pieces:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Whoever pressed Ctrl-C does not wait for a network.
        self._threads.shutdown(wait=not isinstance(error, KeyboardInterrupt), cancel_futures=True)

    def read(self, key: str, start: int, end: int) -> Iterator[memoryview]:
        """All bytes from `start` to `end`, in pieces that are good until the next is asked for. Raises Corrupt where
        there are fewer. Among many each has a connection of its own, and what comes is not held in memory; one that is
        alone uses several."""
        try:
            while start < end:
                size = min(_WINDOW_BYTES, end - start)
                crowd = self._to_come >= _CROWD
                came = 0
                for piece in self.store.stream(key, start, size) if crowd else self._ahead(key, start, start + size):
                    came += len(piece)
                    yield piece
                if came != size:
                    raise Corrupt(f"`{key}` is shorter than the {end} bytes it should have")
                start += size
        finally:
            with self._lock:
                self._to_come -= 1

    def _ahead(self, key: str, start: int, end: int) -> Iterator[memoryview]:
        asked: deque[Future[bytes]] = deque()
        try:
            while start < end or asked:
                while start < end and len(asked) <= _AHEAD:
                    size = min(PIECE_BYTES, end - start)
                    asked.append(self._threads.submit(self.store.get, key, start, size))
                    start += size
                yield memoryview(asked.popleft().result())
        finally:
            for coming in asked:
                coming.cancel()


def bring_one(pieces: Pieces, place: str, key: str, size_bytes: int, sha256: str) -> None:
    if size_bytes <= PIECE_BYTES:
        _bring_small(pieces.store, place, key, size_bytes, sha256)
        return
    for _ in range(2):  # what an earlier process left may not have been the beginning of this
        if _bring_large(pieces, place, key, size_bytes, sha256):
            return
    raise _wrong(key, sha256)


def _bring_small(store: Store, place: str, key: str, size_bytes: int, sha256: str) -> None:
    data = store.get(key, 0, size_bytes + 1)  # one more, to notice an object that is longer
    if len(data) != size_bytes:
        raise Corrupt(f"`{key}` does not have the {size_bytes} bytes it should have")
    if sha256 and hashlib.sha256(data).hexdigest() != sha256:
        raise _wrong(key, sha256)
    part = f"{_folder(place)}/{_PART}{os.urandom(8).hex()}"
    try:
        file = _open(part, _NEW)
        try:
            _write_all(file, memoryview(data))
        finally:
            os.close(file)
        os.replace(part, place)
    except OSError as error:
        with suppress(OSError):
            os.unlink(part)
        raise disk_failed("write", place, error) from error


def _bring_large(pieces: Pieces, place: str, key: str, size_bytes: int, sha256: str) -> bool:
    """Whether the bytes have the hash. If not, nothing is left of them."""
    part = part_of(place, sha256)
    try:
        file = _open(part, _GO_ON)
        try:
            digest = hashlib.sha256()
            there = _hash_beginning(file, size_bytes, digest) if sha256 else 0
            for piece in pieces.read(key, there, size_bytes):
                digest.update(piece)
                _write_all(file, piece)
        finally:
            os.close(file)
        if digest.hexdigest() != sha256 if sha256 else pieces.store.get(key, size_bytes, 1):
            os.unlink(part)
            return False
        os.replace(part, place)
    except OSError as error:
        if not sha256:
            with suppress(OSError):
                os.unlink(part)
        raise disk_failed("write", place, error) from error
    return True


def part_of(place: str, sha256: str) -> str:
    """Where a large file is until it is whole. Named by place and content: whoever brings the same to the same place
    goes on with it, and two files with the same content do not get in each other's way."""
    name = hashlib.sha256(os.fsencode(place)).hexdigest()[:8]
    return f"{_folder(place)}/{_PART}{name}-{sha256 or os.urandom(8).hex()}"


def _hash_beginning(file: int, size_bytes: int, digest: hashlib._Hash) -> int:
    """How many bytes are there, hashed; behind them is where to go on."""
    there = os.fstat(file).st_size
    if there > size_bytes:
        os.ftruncate(file, 0)
        return 0
    done = 0
    while done < there and (piece := os.read(file, min(1 << 20, there - done))):
        digest.update(piece)
        done += len(piece)
    return done


def _wrong(key: str, sha256: str) -> Corrupt:
    return Corrupt(
        f"the bytes of `{key}` do not have the hash {sha256}", hint="send them again from where they are right"
    )


def _folder(place: str) -> str:
    return os.path.dirname(place) or "."


def _open(path: str, flags: int) -> int:
    try:
        return os.open(path, flags, 0o666)
    except FileNotFoundError:
        os.makedirs(_folder(path), exist_ok=True)
        return os.open(path, flags, 0o666)


def _write_all(file: int, data: memoryview) -> None:
    while data:
        data = data[os.write(file, data) :]
