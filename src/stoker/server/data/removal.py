"""Removes content of datasets that no manifest in the store names any more, and keeps uploads from relying on it."""

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

_FORGOTTEN_S = 86400.0  # content this old that nobody names is left over from an upload that was never finished
_THREADS = 16
_HASH = re.compile(rb'"([0-9a-f]{64})"')


@dataclass(frozen=True, slots=True)
class Removed:
    """How much content went."""

    files: int = 0
    size_bytes: int = 0

    def __add__(self, other: Removed) -> Removed:
        return Removed(self.files + other.files, self.size_bytes + other.size_bytes)


class ContentRemoval:
    """An upload leaves out what the store has. If that is removed before its version is registered, the version would
    be broken: so each removal changes the store's mark, and a registration has to show the mark it began with."""

    def __init__(self) -> None:
        self._since = secrets.token_hex(4)  # a server that starts does not know what the last one removed
        self._counts: dict[str, int] = {}
        self._busy: dict[str, int] = {}
        self._lock = threading.Lock()

    def mark(self, store: str) -> str:
        return f"{self._since}-{self._counts.get(store, 0)}"

    def check(self, store: str, mark: str) -> None:
        with self._lock:
            if self._busy.get(store) or mark != self.mark(store):
                raise DatasetChanging(f"content is being removed from the store `{store}`", hint="try again")

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
        """The manifests with these keys, and what only they named. The store's own manifests say what is needed, so
        that content is safe which another server put there."""
        freed: set[bytes] = set()
        for key in manifests:
            with suppress(
                Missing
            ):  # lost, or removed by a call that broke off: then its content is found when it is old
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
    """Every hash in its text: also a manifest that is damaged keeps what it can still be seen to name."""
    for found in _HASH.finditer(store.get(manifest)):
        yield bytes.fromhex(found[1].decode())
