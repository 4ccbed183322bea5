"""The wire format of protocol buffers: the fields of a message by number, without its description. Pure."""

from __future__ import annotations

from typing import Any

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
