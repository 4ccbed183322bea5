"""Deletes dataset content that no manifest in the store refers to, and protects uploads that rely on it."""

from __future__ import annotations

import re
import secrets
import threading
import time
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from stoker.errors import DatasetChanging, Missing
from stoker.model.workspace import layout
from stoker.stores import Store

_FORGOTTEN_S = 86400.0  # unreferenced content of this age is left over from an unfinished upload
_THREADS = 16
_HASH = re.compile(rb'"([0-9a-f]{64})"')


@dataclass(frozen=True, slots=True)
class Removed:
    """How much content was deleted."""

    files: int = 0
    size_bytes: int = 0

    def __add__(self, other: Removed) -> Removed:
        return Removed(self.files + other.files, self.size_bytes + other.size_bytes)


class ContentRemoval:
    """An upload skips what the store has. If that is deleted before its version is registered, the version would be
    broken: so each deletion changes the store's mark, and a registration must show the mark that it started with."""

    def __init__(self) -> None:
        self._since = secrets.token_hex(4)  # a new server does not know what the last one deleted
        self._counts: dict[str, int] = {}
        self._busy: dict[str, int] = {}
        self._lock = threading.Lock()

    def mark(self, store: str) -> str:
        return f"{self._since}-{self._counts.get(store, 0)}"

    def check(self, store: str, mark: str) -> None:
        with self._lock:
            if self._busy.get(store) or mark != self.mark(store):
                raise DatasetChanging(f"content is being deleted from the store `{store}`", hint="try again")

    @contextmanager
    def under_way(self, store: str) -> Iterator[None]:
        with self._lock:
            self._busy[store] = self._busy.get(store, 0) + 1
        try:
            yield
        finally:
            with self._lock:
                self._busy[store] -= 1
                self._counts[store] = self._counts.get(store, 0) + 1

    def remove(self, store: Store, dataset: str, manifests: Collection[str]) -> Removed:
        """Deletes the manifests with these keys, and the content that only they refer to. The store's own manifests
        decide, so that the content of other servers is safe."""
        freed: set[bytes] = set()
        for key in manifests:
            with suppress(Missing):  # lost, or deleted by an interrupted call: then its content is found by its age
                freed.update(_named(store, key))
            store.delete(key)
        there = list(store.list(layout.dataset(dataset).rstrip("/")))
        needed = {sha256 for one in there if layout.is_manifest(one.key) for sha256 in _named(store, one.key)}
        old = time.time() - _FORGOTTEN_S
        gone = [
            stored
            for stored in there
            if (hash := bytes.fromhex(layout.content_hash(stored.key) or ""))
            and hash not in needed
            and (hash in freed or stored.changed_at < old)
        ]
        with ThreadPoolExecutor(_THREADS) as threads:
            list(threads.map(store.delete, (stored.key for stored in gone)))
        return Removed(len(gone), sum(stored.size_bytes for stored in gone))


def _named(store: Store, manifest: str) -> Iterator[bytes]:
    """Every hash in its text: even a damaged manifest protects the content that it still names."""
    for found in _HASH.finditer(store.get(manifest)):
        yield bytes.fromhex(found[1].decode())
