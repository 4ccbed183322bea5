"""Many blobs as one stream: an uncompressed tar whose members are regular files named by their sha256.

Implemented here because the format is one header, and `tarfile` costs more time per member than a small file does.
Standard library only: agents carry this file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO, cast

from stoker.errors import BadInput, Corrupt
from stoker.model.cause import Cause
from stoker.stores.transfer.verified import ByteSource, Verified

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
