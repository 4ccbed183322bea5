"""Removes what no run uses any more: code, from the stores it is in, and venvs that runs on this computer share."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from stoker.errors import Missing
from stoker.files.lock import take
from stoker.model.node.orders import lock_of, users_of, venv_used
from stoker.model.workspace import layout
from stoker.model.workspace.store import FOLDER
from stoker.server.code.arrivals import Arrivals, Coming
from stoker.server.code.shelf import Shelves
from stoker.stores import Store
from stoker.stores.trees.clearing import clear

_THREADS = 16
_HASH = re.compile(rb'"([0-9a-f]{64})"')


class UnusedCode:
    """Everything here may fail half-way, and be repeated. A snapshot is deleted before its files: if the snapshot
    exists, it is complete."""

    def __init__(
        self,
        shelves: Shelves,
        arrivals: Arrivals,
        in_use: Callable[[], set[str]],
        own_runs: Callable[[], set[str]],
    ) -> None:
        """`in_use` returns the snapshots that runs of this server refer to, `own_runs` the ids of these."""
        self._shelves = shelves
        self._arrivals = arrivals
        self._in_use = in_use
        self._own_runs = own_runs

    def remove(self, gone: Mapping[str, Collection[str]]) -> None:
        """`gone` are snapshots of removed runs, by the name of their store. Other servers may have runs in any store
        but the local folder: there, nothing else is touched."""
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
    """Every hash in their texts: even a damaged snapshot protects the files that it still names."""
    found: set[str] = set()
    for key in snapshots:
        with suppress(Missing):
            found.update(one.decode() for one in _HASH.findall(store.get(key)))
    return found


def _named_by_others(store: Store, snapshots: Collection[str], own_runs: Collection[str]) -> set[str]:
    """Those of runs of other servers, from their records in this store. Raises where one is unreadable."""
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


def remove_unused(folder: Path, runs: Callable[[], set[str]]) -> int:
    """Returns how many were deleted. `runs` returns the ids of all runs. A venv that is being built is skipped until
    next time, and so is one of an older Stoker without a list of its users."""
    marks = {venv: set(_names(users_of(venv))) for venv in _venvs(folder)}
    known = runs()  # after reading the marks: a run exists before its agent leaves one
    removed = 0
    for venv, users in marks.items():
        for gone in users - known:
            (users_of(venv) / gone).unlink(missing_ok=True)
        if not users & known and _remove(venv):
            removed += 1
    return removed


def _venvs(folder: Path) -> list[Path]:
    return [venv for name in _names(folder) if (venv := venv_used(folder / name))]


def _names(folder: Path) -> list[str]:
    try:
        return [one.name for one in folder.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _remove(venv: Path) -> bool:
    """Repeatable, also after a crash: the folder of its users is deleted last."""
    lock = os.open(lock_of(venv), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if not take(lock) or _names(users_of(venv)):
            return False
        clear(str(venv))
        lock_of(venv).unlink(missing_ok=True)
        with suppress(OSError):  # gone, or used by a process with a new lock
            users_of(venv).rmdir()
        return True
    finally:
        os.close(lock)
