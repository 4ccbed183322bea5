"""A snapshot and all of its files as one object: a node reads it over a network, with a token for nothing else.

A header, the manifest, then every content once: small ones first, in the order in which a tree is written, so that few
reads are enough. Standard library only: agents carry this file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import BinaryIO

from stoker.errors import Corrupt, Missing
from stoker.model import wire
from stoker.model.snapshot import Entry, EntryKind, Snapshot
from stoker.model.workspace import layout
from stoker.stores import Store, Stored
from stoker.stores.objects.bucket import SEGMENT_BYTES
from stoker.stores.trees.unpack import checked, verified

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
