"""Files between a disk and a store: concurrently, verified, in bounded memory; large ones in pieces. Standard library
only: agents may carry this file."""

from __future__ import annotations

import hashlib
import io
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext, suppress
from types import TracebackType
from typing import BinaryIO, Generic, NamedTuple, Protocol, TypeVar, cast

from stoker.errors import Corrupt, FileChanged, StoreUnavailable
from stoker.stores import Store
from stoker.stores.transfer.disk import disk_failed
from stoker.stores.transfer.verified import Mark, Still, Verified, mark_of

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
            patiently(lambda: _send(store, item), try_for_s)

    side_by_side(items, send, told, store.at_once)


def download(store: Store, items: Iterable[Item], told: Told | None = None, *, try_for_s: float = TRY_FOR_S) -> None:
    """Files appear complete and verified, or not at all. Folders are created. An incomplete large file is resumed the
    next time. Raises Corrupt where the store does not have the right bytes, and Missing."""
    items = list(items)
    with Pieces(store, sum(item.size_bytes > PIECE_BYTES for item in items)) as pieces:
        side_by_side(
            items, lambda item: patiently(lambda: bring_one(pieces, *item[:4]), try_for_s), told, store.at_once
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


def patiently(work: Callable[[], None], try_for_s: float) -> None:
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
