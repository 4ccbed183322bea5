"""What an object store itself can do, whoever provides it. `ObjectStore` turns it into a Store.

Standard library only: agents carry this file.

A store made of an object store. Standard library only: agents carry this file.

Object stores cannot append. Appended data is a series of objects of exactly `SEGMENT_BYTES`, and a shorter last one
that is rewritten with each append: the first under the key itself, the others in a folder next to it, by number. So a
reader finds any offset without a listing, and an object of another size than `SEGMENT_BYTES` never continues.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO, NamedTuple, Protocol

from stoker.errors import Missing, StoreFailed
from stoker.stores import Store, Stored

LONGEST_NAME_BYTES = 1024  # of Azure Blob and of S3
_REFUSED = re.compile(
    r"[\x00-\x1f\x7f\\]|(?:\A|/)(?:\.\.?)?(?:/|\Z)"
)  # what a service would change, or mistake for a path


class Piece(NamedTuple):
    """Bytes of an object, and its total size."""

    data: bytes
    total: int


class Bucket(Protocol):
    """Names are any text that `checked` accepts; a prefix is empty or ends with `/`. A token holder can create objects
    with other names: `entries` returns those as they are, and `remove` accepts them. Buckets inherit from this."""

    def read(self, name: str, start: int, size: int | None) -> Piece:
        """Empty where the object ends before `start`. Raises Missing."""
        ...

    def stream(self, name: str, start: int, size: int) -> Iterator[memoryview]:
        """As `Store.stream` says."""
        ...

    def size(self, name: str) -> int:
        """Raises Missing."""
        ...

    def write(self, name: str, data: bytes | BinaryIO, *, only_new: bool = False) -> int:
        """How many bytes were written: all of them, or none and an error. Raises AlreadyThere."""
        ...

    def entries(self, prefix: str) -> Iterator[Stored]: ...

    def remove(self, name: str) -> None:
        """A missing object is fine."""
        ...

    def remove_whole(self, prefix: str) -> bool:
        """Deletes everything below a prefix at once. False where that is not supported: then nothing was deleted."""
        return False

    def prepare(self, name: str) -> None:
        """Creates the container of a name, where a token holder could not. Most have nothing to do."""
        return


def is_key(name: str) -> bool:
    """Whether `checked` accepts it."""
    if _REFUSED.search(name):
        return False
    if name.isascii():
        return len(name) <= LONGEST_NAME_BYTES
    try:
        return len(name.encode()) <= LONGEST_NAME_BYTES
    except UnicodeEncodeError:
        return False


def checked(key: str) -> str:
    """Raises StoreFailed where an object store does not support such a name, or would change it."""
    if _REFUSED.search(key):
        raise StoreFailed(f"`{key}` is not a key")
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        raise StoreFailed(f"the key {key!r} is not text") from None
    if size > LONGEST_NAME_BYTES:
        raise StoreFailed(f"the key `{key[:60]}…` has {size} bytes; an object store allows {LONGEST_NAME_BYTES}")
    return key


SEGMENT_BYTES = 1 << 20
_MARK = ".~/"
_SEGMENT = re.compile(r"(.+)\.~/([0-9]{8})", re.DOTALL)
_AT_ONCE = 16  # concurrent deletions: each takes its time
_TAILS = 64  # ends of objects that are kept in memory, a segment each at most


class _Tail(NamedTuple):
    """The last, incomplete segment of an object that was appended to: its offset, and its content."""

    start: int
    data: bytes


class ObjectStore(Store):
    def __init__(self, url: str, bucket: Bucket) -> None:
        self.url = url
        self.bucket = bucket
        self._locks = [threading.Lock() for _ in range(_TAILS)]
        self._tails: dict[str, _Tail] = {}
        self._long: set[str] = set()  # keys known to have segments
        self._left_out = 0

    def get(self, key: str, start: int = 0, size: int | None = None) -> bytes:
        _checked(key)
        if size == 0:
            self.bucket.size(key)
            return b""
        if start >= SEGMENT_BYTES and key in self._long:
            return self._read_long(key, start, size)
        data, total = self.bucket.read(key, start, size)
        if total != SEGMENT_BYTES or (size is not None and start + size <= total):
            return data
        return data + self._read_on(key, max(start, total), None if size is None else size - len(data))

    def stream(self, key: str, start: int, size: int) -> Iterator[memoryview]:
        return self.bucket.stream(_checked(key), start, size)

    def put(self, key: str, data: bytes | BinaryIO, *, only_new: bool = False) -> None:
        _checked(key)
        if self.bucket.write(key, data, only_new=only_new) == SEGMENT_BYTES:
            self._remove_segments(key, 1)  # of an earlier object under this key
        self._forget(key)

    def append(self, key: str, offset: int, data: bytes) -> int:
        _checked(key)
        with self._locks[hash(key) % _TAILS]:
            known = self._tails.pop(key, None) or self._find_tail(key)
            tail = known or _Tail(0, b"")
            size = tail.start + len(tail.data)
            if offset > size:
                raise StoreFailed(f"`{key}` has {size} bytes, cannot append at {offset}")
            fresh = data[size - offset :]
            if fresh or known is None:
                tail = self._write_tail(key, tail, fresh)
            self._keep_tail(key, tail)
            return size + len(fresh)

    def list(self, prefix: str) -> Iterator[Stored]:
        below = f"{checked(prefix.removesuffix('/'))}/" if prefix else ""
        full: dict[str, Stored] = {}  # objects that may have segments
        segments: dict[str, dict[int, Stored]] = {}
        for one in self.bucket.entries(below):
            if found := _SEGMENT.fullmatch(one.key):
                segments.setdefault(found[1], {})[int(found[2])] = one
            elif not is_key(one.key):
                # Created outside Stoker and unreadable here. A name that ends so marks a folder.
                self._left_out += not one.key.endswith("/")
            elif one.size_bytes == SEGMENT_BYTES:
                full[one.key] = one
            else:
                yield one
        for key, one in full.items():
            yield _joined(one, segments.get(key, {}))

    def delete(self, key: str) -> None:
        _checked(key)
        self._forget(key)
        try:
            size = self.bucket.size(key)
        except Missing:
            return
        if size == SEGMENT_BYTES:
            self._remove_segments(key, 1)
        self.bucket.remove(key)

    def remove_below(self, prefix: str) -> None:
        below = f"{checked(prefix.removesuffix('/'))}/"
        self._tails = {key: tail for key, tail in self._tails.items() if not key.startswith(below)}
        if self.bucket.remove_whole(below):
            return
        names = [one.key for one in self.bucket.entries(below)]
        with ThreadPoolExecutor(_AT_ONCE, "removal") as threads:
            for _ in threads.map(self.bucket.remove, names):
                pass

    @property
    def left_out(self) -> int:
        return self._left_out

    def prepare(self, key: str) -> None:
        self.bucket.prepare(key)

    def _read_long(self, key: str, start: int, size: int | None) -> bytes:
        """Without reading the first segment, unless there is nothing: then the object may have been replaced."""
        if data := self._read_on(key, start, size):
            return data
        self._long.discard(key)
        return self.get(key, start, size) if self.bucket.size(key) != SEGMENT_BYTES else b""

    def _read_on(self, key: str, at: int, size: int | None) -> bytes:
        """The bytes of the segments after the first, from `at` on."""
        pieces = []
        end = None if size is None else at + size
        while end is None or at < end:
            number, inside = divmod(at, SEGMENT_BYTES)
            wanted = SEGMENT_BYTES - inside if end is None else min(SEGMENT_BYTES - inside, end - at)
            try:
                data, total = self.bucket.read(_segment(key, number), inside, wanted)
            except Missing:
                break
            self._long.add(key)
            pieces.append(data)
            at += len(data)
            if total < SEGMENT_BYTES:
                break
        return b"".join(pieces)

    def _write_tail(self, key: str, tail: _Tail, fresh: bytes) -> _Tail:
        while True:
            room = SEGMENT_BYTES - len(tail.data)
            tail = _Tail(tail.start, tail.data + fresh[:room])
            self.bucket.write(_segment(key, tail.start // SEGMENT_BYTES), tail.data)
            fresh = fresh[room:]
            if len(tail.data) == SEGMENT_BYTES:
                tail = _Tail(tail.start + SEGMENT_BYTES, b"")
            if not fresh:
                return tail

    def _find_tail(self, key: str) -> _Tail | None:
        """What another process left, if any. Segments that do not belong to the object are deleted, since they would
        belong to it once it has grown."""
        try:
            size = self.bucket.size(key)
        except Missing:
            self._remove_segments(key, 1)
            return None
        if size > SEGMENT_BYTES:
            size = self._split(key)
        segments = self._segments(key) if size == SEGMENT_BYTES else {}
        number, last = 0, size
        while last == SEGMENT_BYTES and number + 1 in segments:
            number, last = number + 1, segments[number + 1].size_bytes
        self._remove_segments(key, number + 1)
        if last == SEGMENT_BYTES:
            return _Tail((number + 1) * SEGMENT_BYTES, b"")
        return _Tail(number * SEGMENT_BYTES, self.bucket.read(_segment(key, number), 0, None).data)

    def _split(self, key: str) -> int:
        """Splits a large object that was put into segments. The first is written last: until then the object is
        unchanged."""
        whole = self.bucket.read(key, 0, None).data
        self._remove_segments(key, 1)
        for number in reversed(range(-(-len(whole) // SEGMENT_BYTES))):
            self.bucket.write(_segment(key, number), whole[number * SEGMENT_BYTES :][:SEGMENT_BYTES])
        return SEGMENT_BYTES

    def _segments(self, key: str) -> dict[int, Stored]:
        found = ((_SEGMENT.fullmatch(one.key), one) for one in self.bucket.entries(key + _MARK))
        return {int(match[2]): one for match, one in found if match and match[1] == key}

    def _remove_segments(self, key: str, first: int) -> None:
        """From the last one down, so that the rest is always a prefix."""
        for number, one in sorted(self._segments(key).items(), reverse=True):
            if number >= first:
                self.bucket.remove(one.key)

    def _keep_tail(self, key: str, tail: _Tail) -> None:
        self._tails[key] = tail
        if len(self._tails) > _TAILS:
            self._tails.pop(next(iter(self._tails)), None)

    def _forget(self, key: str) -> None:
        self._tails.pop(key, None)
        self._long.discard(key)


def _checked(key: str) -> str:
    if _SEGMENT.fullmatch(key):
        raise StoreFailed(f"`{key}` is not a key: such names are reserved for segments")
    return checked(key)


def _segment(key: str, number: int) -> str:
    return f"{key}{_MARK}{number:08d}" if number else key


def _joined(first: Stored, segments: dict[int, Stored]) -> Stored:
    """One object from its segments, as far as they are contiguous."""
    size, last, number = first.size_bytes, first, 1
    while last.size_bytes == SEGMENT_BYTES and number in segments:
        last = segments[number]
        size += last.size_bytes
        number += 1
    return Stored(first.key, size, max(first.changed_at, last.changed_at), last.etag)
