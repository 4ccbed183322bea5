"""TensorBoard event files, read while they are written: records, and the scalars in them. No dependency.

A file is a sequence of records, each with its length and two checksums. A record is a protocol buffer, `Event`, of
which the few fields that scalars need are read here by number.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from stoker.files import masked_crc

LARGEST_RECORD = 1 << 20  # larger ones contain images and the like, and are skipped
_HEADER = struct.Struct("<QI")  # length, its masked CRC
_FOOTER = 4  # the CRC of the data, not checked: in Python that would cost more than everything else here


@dataclass(frozen=True, slots=True)
class EventScalar:
    at: float  # unix seconds
    step: int
    tag: str
    value: float


class EventFile:
    """One file, from an offset and then from where the last read ended. An incomplete record waits."""

    def __init__(self, path: str, offset: int = 0) -> None:
        self.path = path
        self._offset = offset
        self.broken = False  # not a record: nothing more is read

    def fresh(self) -> Iterator[EventScalar]:
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return
        try:
            while not self.broken:
                record = self._record(fd)
                if record is None:
                    return
                yield from scalars(record)
        finally:
            os.close(fd)

    def _record(self, fd: int) -> bytes | None:
        """The next complete record; empty for a skipped one; None if there is none yet."""
        header = os.pread(fd, _HEADER.size, self._offset)
        if len(header) < _HEADER.size:
            return None
        length, checksum = _HEADER.unpack(header)
        if checksum != masked_crc(header[:8]):
            self.broken = True
            return None
        start, end = self._offset + _HEADER.size, self._offset + _HEADER.size + length + _FOOTER
        if os.fstat(fd).st_size < end:
            return None
        self._offset = end
        return os.pread(fd, length, start) if length <= LARGEST_RECORD else b""


def scalars(record: bytes) -> Iterator[EventScalar]:
    """The scalars of one `Event`. A malformed one has none."""
    try:
        event = fields(record)
        at = struct.unpack("<d", last(event, 1, bytes(8)))[0]
        step = signed(last(event, 2, 0))
        for summary in event.get(5, ()):
            for item in fields(summary).get(1, ()):
                value = fields(item)
                number = _number(value)
                if number is not None:
                    yield EventScalar(at, step, last(value, 1, b"").decode(), number)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, OverflowError, struct.error):
        return


def _number(value: Wire) -> float | None:
    """`simple_value` as version 1 and PyTorch write it, or a tensor of no dimensions as version 2 and Keras do."""
    if 2 in value:
        return float(struct.unpack("<f", value[2][-1])[0])
    plugin = last(fields(last(fields(last(value, 9, b"")), 1, b"")), 1, b"scalars")
    if 8 not in value or plugin != b"scalars":
        return None
    tensor = fields(value[8][-1])
    dimensions = fields(last(tensor, 2, b"")).get(2)
    kind = _KINDS.get(last(tensor, 1, 0))
    return None if dimensions or kind is None else _element(tensor, *kind)


# The data types of tensors by number: how one element is packed, and the field that contains unpacked elements.
_KINDS = {
    1: ("<f", 5),
    2: ("<d", 6),
    3: ("<i", 7),
    4: ("<B", 7),
    5: ("<h", 7),
    6: ("<b", 7),
    9: ("<q", 10),
    14: ("bfloat16", 13),
    17: ("<H", 7),
    19: ("<e", 13),
    22: ("<I", 16),
    23: ("<Q", 17),
}


def _element(tensor: Wire, packing: str, field: int) -> float | None:
    if content := last(tensor, 4, b""):
        return _unpacked(content, packing)
    if field not in tensor:
        return None
    raw = tensor[field][-1]
    if packing in ("<f", "<d"):
        return _unpacked(raw, packing)
    number = raw if isinstance(raw, int) else varint(raw, 0)[0]
    if field == 13:  # the bits of a half as a number
        return _unpacked(number.to_bytes(2, "little"), packing)
    return float(number if field in (16, 17) else signed(number))


def _unpacked(content: bytes, packing: str) -> float:
    if packing == "bfloat16":  # the upper half of a float
        return float(struct.unpack("<f", b"\0\0" + content[:2])[0])
    return float(struct.unpack_from(packing, content)[0])


Wire = dict[int, list[Any]]  # field number to values: int for a varint, bytes for everything else


def fields(message: bytes) -> Wire:
    found: Wire = {}
    at = 0
    while at < len(message):
        tag, at = varint(message, at)
        kind = tag & 7
        value: int | bytes
        if kind == 0:
            value, at = varint(message, at)
        else:
            size, at = varint(message, at) if kind == 2 else (_SIZES[kind], at)
            value = message[at : at + size]
            at += size
            if len(value) < size:
                raise ValueError("the message ends in the middle of a field")
        found.setdefault(tag >> 3, []).append(value)
    return found


_SIZES = {1: 8, 5: 4}
_VARINT_BITS = 70  # seven in each of ten bytes


def varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        if shift >= _VARINT_BITS:
            raise ValueError("the varint does not end")
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return number, at


def signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


def last(message: Wire, field: int, default: Any) -> Any:
    return message[field][-1] if field in message else default
