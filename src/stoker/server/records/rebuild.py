"""A damaged database is moved away and rebuilt from the records in the stores, so that no run is lost.

A record counts only with this server's signature, in its own place. It never starts a run: see
`engine/nodes/restored.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from stoker.engine.nodes.restored import restored
from stoker.errors import Corrupt, HomeUnusable, StokerError, StoreFailed
from stoker.model import wire
from stoker.model.run.run import Run
from stoker.model.workspace import layout
from stoker.model.workspace.home import Home
from stoker.server.records.database import Database
from stoker.server.records.recorder import Signing
from stoker.server.records.tables import DatasetRecord, DatasetTable, StoreTable
from stoker.server.stores.keychain import Keychain
from stoker.server.stores.stores import StoreDirectory
from stoker.stores import Store

log = logging.getLogger(__name__)

T = TypeVar("T")

_BESIDE = ("", "-wal", "-shm")  # the files of one database


def rebuild(home: Home, keychain: Keychain) -> tuple[Database, str]:
    """The new database, and a sentence about what happened.

    Raises StoreFailed, with nothing changed, where a store is unreadable: its runs would be lost. Raises HomeUnusable
    likewise where the key of the records is missing.
    """
    fresh = home.database.with_name(f"{home.database.name}.new")
    _remove(fresh)
    database = Database.open(fresh)
    table = StoreTable(database.engine, home.stores)
    table.restore()
    records = _Records(StoreDirectory(home, table, keychain), Signing(keychain))
    now = datetime.now(UTC)
    runs = [restored(run, now) for run in _with_names_of_their_own(records.read(layout.RUN_RECORDS, _run_of))]
    database.restore(runs)
    DatasetTable(database.engine).restore(records.read(layout.DATASET_RECORDS, _dataset_of))
    database.close()
    aside = home.database.with_name(f"{home.database.name}.damaged-{now:%Y%m%dT%H%M%S}")
    home.database.rename(aside)
    _remove(home.database)
    fresh.rename(home.database)
    told = f"the database was damaged; {len(runs)} runs were restored from the store, the old file is {aside}"
    return Database.open(home.database), told + records.told


@dataclass
class _Records:
    """The records of the stores, and those that were skipped."""

    stores: StoreDirectory
    signing: Signing
    left_out: list[str] = field(default_factory=list)

    @property
    def told(self) -> str:
        if not self.left_out:
            return ""
        return f"; {len(self.left_out)} records were skipped, because this server did not write them: " + ", ".join(
            self.left_out[:3]
        )

    def read(self, prefix: str, understood: Callable[[str, str, bytes], T]) -> list[T]:
        """`understood` gets the name of a store, a key there and the signed content; raises Corrupt where the content
        does not belong to the key."""
        found: list[T] = []
        for known in self.stores.all:
            try:
                store = self.stores.open(known.name)
                for key in [stored.key for stored in store.list(prefix.rstrip("/"))]:
                    found += self._one(known.name, store, key, understood)
            except HomeUnusable:
                raise
            except StokerError as error:
                raise _unreadable(known.name, error) from error
        return found

    def _one(self, name: str, store: Store, key: str, understood: Callable[[str, str, bytes], T]) -> list[T]:
        try:
            data = store.get(key)
            return [understood(name, key, self.signing.opened(name, key, data))]
        except Corrupt as error:
            log.warning("skipped %s in the store `%s`: %s", key, name, error.message)
            self.left_out.append(f"`{key}` in `{name}`")
            return []


def _unreadable(name: str, error: StokerError) -> StoreFailed:
    return StoreFailed(
        f"the database is damaged, and the store `{name}` that it would be rebuilt from is unreadable: {error.message}",
        hint="make the store reachable, then try again; nothing was changed",
    )


def _run_of(store: str, key: str, data: bytes) -> Run:
    run = _loaded(Run, data)
    if (layout.recorded_run(key), store) != (run.id, run.store):
        raise Corrupt(f"it is the record of the run {run.id} in `{run.store}`")
    return run


def _dataset_of(store: str, key: str, data: bytes) -> DatasetRecord:
    record = _loaded(DatasetRecord, data)
    named = {(record.name, store), *((version.name, version.store) for version in record.versions)}
    if named != {(layout.recorded_dataset(key), store)}:
        raise Corrupt(f"it is the record of the dataset {record.name}")
    return record


def _loaded(of: type[T], data: bytes) -> T:
    try:
        return wire.load(of, data)
    except (KeyError, TypeError, ValueError) as error:
        raise Corrupt(f"it is unreadable: {error}") from error


def _with_names_of_their_own(runs: Iterable[Run]) -> list[Run]:
    """The newest of two runs keeps the name. This happens where one was removed while its store was unavailable."""
    taken: set[str] = set()
    found = []
    for run in sorted(runs, key=lambda run: run.id, reverse=True):
        name = run.name if run.name not in taken else f"{run.name}-{run.id}"
        if name != run.name:
            log.warning("two runs are named %s: renamed the older one to %s", run.name, name)
        taken.add(name)
        found.append(replace(run, name=name))
    return found


def _remove(database: Path) -> None:
    for end in _BESIDE:
        database.with_name(database.name + end).unlink(missing_ok=True)
