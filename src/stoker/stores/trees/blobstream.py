"""Many files as one stream, and a snapshot with all of its files as one object: an uncompressed tar whose members are
regular files named by their sha256.

Implemented here because the format is one header, and `tarfile` costs more time per member than a small file does.
Standard library only: agents carry this file."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO, cast

from stoker.errors import BadInput, Corrupt, Missing
from stoker.model import wire
from stoker.model.cause import Cause
from stoker.model.snapshot import Entry, EntryKind, Snapshot
from stoker.model.workspace import layout
from stoker.stores import Store, Stored
from stoker.stores.objects.bucket import SEGMENT_BYTES
from stoker.stores.transfer.verified import ByteSource, Verified
from stoker.stores.trees.unpack import checked, verified

Item = tuple[str, int, Callable[[], BinaryIO]]  # sha256, size in bytes, and how to open it

CHUNK_BYTES = 256 * 1024
_BLOCK = 512
_END = bytes(2 * _BLOCK)
_NAME = re.compile(rb"[0-9a-f]{64}\0{36}")
_OCTAL_LIMIT = 8**11
_REGULAR = (b"0", b"\0")


def blob_stream(items: Iterable[Item]) -> Iterator[bytes]:
    """The stream in chunks of about `CHUNK_BYTES`, with small blobs together in one.

    Raises Corrupt where a blob does not have its hash; a reader then never sees the end of the stream.
    """
    batch = bytearray()
    for sha256, size, open_blob in items:
        batch += _header(sha256, size)
        with open_blob() as file:
            blob = Verified(file, sha256, size)
            while piece := blob.read(CHUNK_BYTES):
                batch += piece
                if len(batch) >= CHUNK_BYTES:
                    yield bytes(batch)
                    batch.clear()
        batch += bytes(-size % _BLOCK)
    yield bytes(batch + _END)


def read_blobs(stream: ByteSource) -> Iterator[tuple[str, BinaryIO]]:
    """Each blob's hash, and its content, to be read before the next one.

    The content verifies itself: the read that reaches its end raises Corrupt if it does not have that hash. Unread
    rests are skipped. The stream may be read past the end of the tar. An interrupted stream raises Corrupt.
    """
    source = _Buffered(stream)
    while header := _next_header(source):
        sha256, size = header
        blob = Verified(source, sha256, size)
        yield sha256, cast(BinaryIO, blob)
        source.skip(blob.left + -size % _BLOCK)
        blob.close()


def _header(sha256: str, size: int) -> bytes:
    # GNU's form for what eleven octal digits cannot represent: a set bit, then the number itself
    length = b"%011o\0" % size if size < _OCTAL_LIMIT else b"\x80" + size.to_bytes(11, "big")
    head = sha256.encode().ljust(100, b"\0") + b"0000644\0" + b"0000000\0" * 2 + length + b"%011o\0" % 0
    tail = b"0".ljust(101, b"\0") + b"ustar\00000"
    checksum = b"%06o\0 " % (sum(head) + sum(tail) + 8 * ord(" "))  # it counts as spaces while it is computed
    return (head + checksum + tail).ljust(_BLOCK, b"\0")


def _next_header(source: _Buffered) -> tuple[str, int] | None:
    """The hash and size of the next member, or None at the end of the tar."""
    block = source.read(_BLOCK)
    if not any(block) and len(block) == _BLOCK:
        return None
    if len(block) < _BLOCK or sum(block) - sum(block[148:156]) + 8 * ord(" ") != _octal(block[148:156]):
        raise Corrupt("the stream of files is damaged or incomplete")
    if block[156:157] not in _REGULAR or not _NAME.fullmatch(block, 0, 100):
        name = block[:100].rstrip(b"\0").decode(errors="backslashreplace")
        what = f"the stream of files contains `{name}`, which is not a file named by its sha256"
        raise BadInput(what, cause=Cause.NAME_INVALID)
    length = block[124:136]
    return block[:64].decode(), int.from_bytes(length[1:], "big") if length[0] & 0x80 else _octal(length)


def _octal(field: bytes) -> int:
    digits = field.strip(b" \0") or b"0"
    if digits.strip(b"01234567"):  # `int` would accept a sign as well
        raise Corrupt("the stream of files is damaged")
    return int(digits, 8)


class _Buffered:
    """Reads a stream in large pieces, so that a hundred thousand small blobs are not three hundred thousand calls."""

    def __init__(self, stream: ByteSource) -> None:
        self._stream = stream
        self._held = b""
        self._at = 0

    def read(self, size: int, /) -> bytes:
        """Fewer bytes than requested only at the end of the stream."""
        piece = self._held[self._at : self._at + size]
        self._at += len(piece)
        if len(piece) == size:
            return piece
        pieces, missing = [piece], size - len(piece)
        while missing and (held := self._stream.read(CHUNK_BYTES)):
            pieces.append(held[:missing])
            self._held, self._at = held, len(pieces[-1])
            missing -= len(pieces[-1])
        return b"".join(pieces)

    def skip(self, size: int) -> None:
        while size:
            skipped = len(self.read(min(size, CHUNK_BYTES)))
            if not skipped:
                raise Corrupt("the stream of files is incomplete")
            size -= skipped


_MARK = b"stoker-code-1\n"
_HEAD_BYTES = len(_MARK) + 8
SMALL_BYTES = 4 << 20  # larger ones are requested piece by piece when they are unpacked
WINDOW_BYTES = 8 << 20  # of small contents that are read at once
GLANCE_BYTES = 64 << 10  # the same for a look at its manifest
_COPY_BYTES = 1 << 20


def write_bundle(snapshot: Snapshot, open_content: Callable[[str], BinaryIO], into: BinaryIO) -> None:
    """`open_content` returns the content with a hash. Raises Corrupt where it has changed."""
    manifest = wire.dump(snapshot)
    into.write(_MARK + len(manifest).to_bytes(8, "big") + manifest)
    size = _HEAD_BYTES + len(manifest)
    for entry in _in_order(snapshot):
        digest, left = hashlib.sha256(), entry.size_bytes
        with open_content(entry.sha256) as content:
            while piece := content.read(_COPY_BYTES):
                digest.update(piece)
                left -= len(piece)
                into.write(piece)
        if left or digest.hexdigest() != entry.sha256:
            raise Corrupt(f"the content of `{entry.path}` is damaged in the store", hint="submit again")
        size += entry.size_bytes
    if size == SEGMENT_BYTES:  # this exact size would cause a request for the next segment, which the token forbids
        into.write(b"\0")


class Bundle(Store):
    """A Store with the contents of one snapshot, to unpack from. For one thread, except for large contents."""

    def __init__(self, store: Store, id: str, window_bytes: int = WINDOW_BYTES) -> None:
        """Raises Missing where the store has none, and Corrupt where it has another id."""
        self.url = store.url
        self._store = store
        self._key = layout.code(id)
        self._window_bytes = window_bytes
        self._start, self._window = 0, b""
        head = self._read(0, _HEAD_BYTES)
        if not head.startswith(_MARK) or len(head) != _HEAD_BYTES:
            raise Corrupt(f"`{self._key}` is not a code snapshot")
        size = int.from_bytes(head[len(_MARK) :], "big")
        self.snapshot = verified(self._read(_HEAD_BYTES, size), id)
        self._places: dict[str, tuple[int, int]] = {}
        at = _HEAD_BYTES + size
        for entry in _in_order(self.snapshot):
            self._places[layout.blob(entry.sha256)] = (at, entry.size_bytes)
            at += entry.size_bytes

    def get(self, key: str, start: int = 0, size: int | None = None) -> bytes:
        try:
            at, most = self._places[key]
        except KeyError:
            raise Missing(f"`{key}` not found in `{self._key}`") from None
        wanted = max(most - start, 0) if size is None else min(size, max(most - start, 0))
        return self._read(at + start, wanted) if most <= SMALL_BYTES else self._store.get(self._key, at + start, wanted)

    def _read(self, at: int, size: int) -> bytes:
        if not size:
            return b""
        if not self._start <= at <= at + size <= self._start + len(self._window):
            self._start, self._window = at, self._store.get(self._key, at, max(size, self._window_bytes))
        return self._window[at - self._start :][:size]

    def put(self, key: str, data: bytes | BinaryIO, *, only_new: bool = False) -> None:
        raise NotImplementedError

    def append(self, key: str, offset: int, data: bytes) -> int:
        raise NotImplementedError

    def list(self, prefix: str) -> Iterator[Stored]:
        raise NotImplementedError

    def delete(self, key: str) -> None:
        raise NotImplementedError


def _in_order(snapshot: Snapshot) -> list[Entry]:
    """Each content once. The sizes are not part of the id, so they must add up to be trusted."""
    found = {entry.sha256: entry for entry in checked(snapshot.entries) if entry.kind is EntryKind.FILE}
    return sorted(found.values(), key=lambda entry: entry.size_bytes > SMALL_BYTES)
