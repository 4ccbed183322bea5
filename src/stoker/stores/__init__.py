"""Where bytes are stored: one folder per kind of store, behind one Protocol. Nothing here knows what the bytes mean.

How often a store is read and written: often on a disk, less often where each request is billed.

Standard library only: agents carry this file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, Protocol

if TYPE_CHECKING:
    from stoker.stores.access import Route

PIECE_BYTES = 1 << 20
AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Stored:
    """One object of a listing. `changed_at` is in unix seconds; `etag` differs for every content of a key."""

    key: str
    size_bytes: int
    changed_at: float
    etag: str = ""


class Store(Protocol):
    """Keys are relative paths with `/`. Every method may be called from several threads and processes at once.

    A store implements `url` and the first five methods. It inherits the others from this class, and overrides those
    that it can do better.
    """

    url: str
    at_once: int = AT_ONCE  # files that are transferred concurrently

    def get(self, key: str, start: int = 0, size: int | None = None) -> bytes:
        """Bytes from `start`; fewer than `size`, or none, where the object ends. Raises Missing."""
        raise NotImplementedError

    def put(self, key: str, data: bytes | BinaryIO, *, only_new: bool = False) -> None:
        """Readers see the old object or the whole new one. With `only_new` an existing key raises AlreadyThere."""
        raise NotImplementedError

    def append(self, key: str, offset: int, data: bytes) -> int:
        """Makes the object contain `data` at `offset`, and returns its size. Existing bytes are kept, so that the same
        append may be repeated. Raises StoreFailed when `offset` is past the end. One writer per key."""
        raise NotImplementedError

    def list(self, prefix: str) -> Iterator[Stored]:
        """Everything below `prefix`, in no particular order."""
        raise NotImplementedError

    def delete(self, key: str) -> None:
        """A missing key is fine."""
        raise NotImplementedError

    def stream(self, key: str, start: int, size: int) -> Iterator[memoryview]:
        """A part of an object that was put, not appended to, never in memory as a whole. A piece is valid until the
        next one is requested. Fewer bytes are returned where the object ends earlier. Raises Missing, and
        StoreUnavailable where the stream is interrupted."""
        for at in range(start, start + size, PIECE_BYTES):
            piece = self.get(key, at, min(PIECE_BYTES, start + size - at))
            yield memoryview(piece)
            if len(piece) < PIECE_BYTES:
                return

    def remove_below(self, prefix: str) -> None:
        """Deletes everything below a prefix, including what `list` omits because its name is not a key. May fail and be
        repeated."""
        for key in [stored.key for stored in self.list(prefix.removesuffix("/"))]:
            self.delete(key)

    def prepare(self, key: str) -> None:
        """Creates the container of a key, where a token holder could not. Most stores have nothing to do."""
        return

    def route(self, key: str) -> Route | None:
        """The token with which this store reaches a key; None where it was opened without any."""
        return None

    def path(self, key: str) -> str:
        """The local file of a key; empty where it is not a file. It need not exist."""
        return ""

    @property
    def near(self) -> bool:
        """Whether requests cost almost nothing, neither time nor money."""
        return False

    @property
    def left_out(self) -> int:
        """How many objects listings have omitted, because their names are not keys."""
        return 0


@dataclass(frozen=True, slots=True)
class Pacing:
    """Seconds. `eager_s` is the interval of looks at something that has just changed, `lazy_s` at something quiet."""

    eager_s: float
    lazy_s: float
    wishes_s: float  # between an agent's looks for the server's wishes
    write_s: float  # between two writes of something that grows all the time, such as a log
    beat_s: float  # between two heartbeats of an agent
    fence_s: float  # between an agent's checks whether it has been replaced


NEAR = Pacing(eager_s=0.01, lazy_s=0.1, wishes_s=0.1, write_s=0.0, beat_s=2.0, fence_s=10.0)
FAR = Pacing(eager_s=0.25, lazy_s=2.0, wishes_s=2.0, write_s=1.0, beat_s=10.0, fence_s=60.0)


def pacing(store: Store) -> Pacing:
    return NEAR if store.near else FAR
