"""Downloads one object: large ones in pieces that are requested in advance, and resumed.

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
_WINDOW_BYTES = 64 << 20  # of one request, where a file has its own connection
_CROWD = 3  # remaining large files, from which on each has its own connection
_PART = ".stoker-part-"
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
_GO_ON = os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0)


class Pieces:
    """Reads objects in advance, within a memory limit."""

    def __init__(self, store: Store, large: int) -> None:
        """`large` is how many large objects will be read in total."""
        self.store = store
        self._to_come = large
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(_PIECES_AT_ONCE, "stoker-pieces")

    def __enter__(self) -> Pieces:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # After Ctrl-C, do not wait for the network.
        self._threads.shutdown(wait=not isinstance(error, KeyboardInterrupt), cancel_futures=True)

    def read(self, key: str, start: int, end: int) -> Iterator[memoryview]:
        """All bytes from `start` to `end`, in pieces that are valid until the next. Raises Corrupt where there are
        fewer. Among many files each has its own connection, and pieces are not buffered; a single one uses several."""
        try:
            while start < end:
                size = min(_WINDOW_BYTES, end - start)
                crowd = self._to_come >= _CROWD
                came = 0
                for piece in self.store.stream(key, start, size) if crowd else self._ahead(key, start, start + size):
                    came += len(piece)
                    yield piece
                if came != size:
                    raise Corrupt(f"`{key}` has fewer than the expected {end} bytes")
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
    for _ in range(2):  # a partial file of an earlier process may not be a prefix of this
        if _bring_large(pieces, place, key, size_bytes, sha256):
            return
    raise _wrong(key, sha256)


def _bring_small(store: Store, place: str, key: str, size_bytes: int, sha256: str) -> None:
    data = store.get(key, 0, size_bytes + 1)  # one more, to detect a longer object
    if len(data) != size_bytes:
        raise Corrupt(f"`{key}` does not have the expected {size_bytes} bytes")
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
    """Whether the bytes have the hash. If not, nothing of them is left."""
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
    """The path of a large file until it is complete. Named by path and content: a repeated download of the same file
    resumes it, and two files with the same content do not collide."""
    name = hashlib.sha256(os.fsencode(place)).hexdigest()[:8]
    return f"{_folder(place)}/{_PART}{name}-{sha256 or os.urandom(8).hex()}"


def _hash_beginning(file: int, size_bytes: int, digest: hashlib._Hash) -> int:
    """How many bytes exist, hashed: where to resume."""
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
    return Corrupt(f"the bytes of `{key}` do not have the hash {sha256}", hint="upload them again from an intact copy")


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
