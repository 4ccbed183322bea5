"""Removes code that no run uses any more, from the stores it lies in."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from stoker.errors import Missing
from stoker.model.workspace import layout
from stoker.model.workspace.store import FOLDER
from stoker.server.code.arrivals import Arrivals, Coming
from stoker.server.code.shelf import Shelves
from stoker.stores import Store

_THREADS = 16
_HASH = re.compile(rb'"([0-9a-f]{64})"')


class UnusedCode:
    """Everything here may fail half-way, and be repeated. A snapshot goes before its files do: what has a snapshot is
    whole."""

    def __init__(
        self,
        shelves: Shelves,
        arrivals: Arrivals,
        in_use: Callable[[], set[str]],
        own_runs: Callable[[], set[str]],
    ) -> None:
        """`in_use` gives the snapshots that runs of this server name, `own_runs` the ids of these."""
        self._shelves = shelves
        self._arrivals = arrivals
        self._in_use = in_use
        self._own_runs = own_runs

    def remove(self, gone: Mapping[str, Collection[str]]) -> None:
        """`gone` are snapshots of removed runs, by the name of their store. Other servers may keep runs in any store
        but the folder of this one: there, nothing else is touched."""
        for name, snapshots in gone.items():
            if name != FOLDER:
                with self._arrivals.still(name) as coming:
                    self._remove_shared(name, set(snapshots) - self._needed(coming), coming)
        with self._arrivals.still(FOLDER) as coming:
            self._remove_own(coming)

    def _needed(self, coming: Coming) -> set[str]:
        return self._in_use() | coming.snapshots

    def _remove_shared(self, name: str, unused: set[str], coming: Coming) -> None:
        shelf = self._shelves.of(name)
        unused -= _named_by_others(shelf.store, unused, self._own_runs())
        if not unused:
            return
        if shelf.far:
            for id in unused:
                shelf.store.delete(layout.code(id))
            return
        freed = _files(shelf.store, map(layout.snapshot, unused))
        for id in unused:
            shelf.store.delete(layout.snapshot(id))
        named = _files(shelf.store, [one.key for one in shelf.store.list("snapshots")])
        shelf.forget(freed - named - coming.files)

    def _remove_own(self, coming: Coming) -> None:
        shelf = self._shelves.of(FOLDER)
        needed = {layout.snapshot(id) for id in self._needed(coming)}
        kept = []
        for one in list(shelf.store.list("snapshots")):
            if one.key in needed:
                kept.append(one.key)
            else:
                shelf.store.delete(one.key)
        used = _files(shelf.store, kept) | coming.files
        there = {stored.key.rpartition("/")[2] for stored in shelf.store.list("blobs")}
        shelf.forget(there - used)


def _files(store: Store, snapshots: Collection[str] | map[str]) -> set[str]:
    """Every hash in their texts: also one that is damaged keeps what it can still be seen to name."""
    found: set[str] = set()
    for key in snapshots:
        with suppress(Missing):
            found.update(one.decode() for one in _HASH.findall(store.get(key)))
    return found


def _named_by_others(store: Store, snapshots: Collection[str], own_runs: Collection[str]) -> set[str]:
    """Those that runs of other servers have, as their records in this store say. Raises where one cannot be read."""
    if not snapshots:
        return set()
    records = [one.key for one in store.list(layout.RUN_RECORDS.rstrip("/"))]
    others = [key for key in records if layout.recorded_run(key) not in own_runs]

    def read(key: str) -> set[str]:
        with suppress(Missing):  # removed meanwhile
            record = store.get(key)
            return {id for id in snapshots if id.encode() in record}
        return set()

    with ThreadPoolExecutor(_THREADS) as threads:
        return set().union(*threads.map(read, others))
