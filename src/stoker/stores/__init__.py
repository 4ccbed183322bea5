"""Where bytes live: one file per kind of store, behind one Protocol. Nothing here knows what the bytes mean."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, Protocol


@dataclass(frozen=True, slots=True)
class Stored:
    """One object as a listing shows it. `changed_at` is in unix seconds; `etag` differs for every content a key had."""

    key: str
    size_bytes: int
    changed_at: float
    etag: str = ""


class Store(Protocol):
    """Keys are relative paths with `/`. Every method may be called from several threads and processes at once."""

    url: str

    def get(self, key: str, start: int = 0, size: int | None = None) -> bytes:
        """Bytes from `start`; fewer than `size`, or none, where the object ends. Raises Missing."""
        ...

    def put(self, key: str, data: bytes | BinaryIO, *, only_new: bool = False) -> None:
        """Readers see the old object or the whole new one. With `only_new` an existing key raises AlreadyThere."""
        ...

    def append(self, key: str, offset: int, data: bytes) -> int:
        """Makes the object hold `data` at `offset`, and returns its size. Bytes already there are kept, so that
        the same append may be repeated. Raises StoreFailed when `offset` is past the end. One writer per key."""
        ...

    def list(self, prefix: str) -> Iterator[Stored]:
        """Everything below `prefix`, in no particular order."""
        ...

    def delete(self, key: str) -> None:
        """Missing is fine."""
        ...
