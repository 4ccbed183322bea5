"""How a person gets to a node, and what a shell needs to know to be where the script is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Entrance:
    """`words` run a command there, in the folder and with the variables of the run; without one, a shell."""

    words: tuple[str, ...]
    terminal: tuple[str, ...] = ()  # words that make the terminal of who runs them that of the script; empty: none do
    here: bool = False  # the node is on the server's own computer
    address: str = ""  # where its sshd listens, if it is not here
    user: str = ""
    port: int = 22


@dataclass(frozen=True, slots=True)
class Inside:
    """Lies as `inside.json` in a node's folder. The secrets of the run are not among the variables."""

    folder: str  # the script's
    env: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Said:
    """What a command has printed, all of it, and its exit code."""

    exit_code: int
    out: bytes = b""
    err: bytes = b""


# What a visit says on its way to whoever listens: pieces of two streams, notes, and its end, one after another.

_HEAD = 5  # a letter and four bytes of length


class FrameKind(StrEnum):
    OUT = "o"
    ERR = "e"
    NOTE = "n"  # words for a person; empty: a sign of life
    END = "x"  # a `VisitEnd`, and the last of all


class Frame(NamedTuple):
    kind: FrameKind
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
            yield Frame(FrameKind(buffer[:1].decode()), buffer[_HEAD:size])
            buffer = buffer[size:]
