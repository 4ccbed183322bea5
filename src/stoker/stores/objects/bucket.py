"""What an object store itself can do, whoever provides it. `ObjectStore` turns it into a Store.

Standard library only: agents carry this file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple, Protocol

from stoker.errors import StoreFailed
from stoker.stores import Stored

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
