"""What a visit says on its way to whoever listens: pieces of two streams, notes, and its end, one after another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import NamedTuple

_HEAD = 5  # a letter and four bytes of length


class Kind(StrEnum):
    OUT = "o"
    ERR = "e"
    NOTE = "n"  # words for a person; empty: a sign of life
    END = "x"  # a `VisitEnd`, and the last of all


class Frame(NamedTuple):
    kind: Kind
    data: bytes = b""

    def packed(self) -> bytes:
        return self.kind.encode() + len(self.data).to_bytes(4, "big") + self.data


def frames(pieces: Iterable[bytes]) -> Iterator[Frame]:
    """From bytes in pieces of any size. One that is cut off is not given out."""
    buffer = b""
    for piece in pieces:
        buffer += piece
        while len(buffer) >= _HEAD:
            size = _HEAD + int.from_bytes(buffer[1:_HEAD], "big")
            if len(buffer) < size:
                break
            yield Frame(Kind(buffer[:1].decode()), buffer[_HEAD:size])
            buffer = buffer[size:]
