"""A damaged database is put aside and made again from what the stores know, so that no run is lost with it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from stoker.errors import StokerError, StoreFailed
from stoker.model import layout, wire
from stoker.model.home import Home
from stoker.model.run import Run
from stoker.server.database import Database
from stoker.server.datasettable import DatasetRecord, DatasetTable
from stoker.server.keychain import Keychain
from stoker.server.stores import Stores
from stoker.server.storetable import StoreTable
from stoker.stores import Store

log = logging.getLogger(__name__)

T = TypeVar("T")

_BESIDE = ("", "-wal", "-shm")  # the files of one database


def rebuild(home: Home, keychain: Keychain) -> tuple[Database, str]:
    """The new database, and a sentence on what happened.

    Raises StoreFailed, with everything as it was, where a store cannot be read: its runs would be lost.
    """
    fresh = home.database.with_name(f"{home.database.name}.new")
    _remove(fresh)
    database = Database.open(fresh)
    table = StoreTable(database.engine, home.stores)
    table.restore()
    stores = Stores(home, table, keychain)
    runs = {run.name: run for run in _recorded(stores, _runs_in)}
    database.restore(runs.values())
    DatasetTable(database.engine).restore(_recorded(stores, _datasets_in))
    database.close()
    aside = home.database.with_name(f"{home.database.name}.damaged-{datetime.now(UTC):%Y%m%dT%H%M%S}")
    home.database.rename(aside)
    _remove(home.database)
    fresh.rename(home.database)
    told = f"the database was damaged; {len(runs)} runs were restored from the store, the old file is {aside}"
    return Database.open(home.database), told


def _recorded(stores: Stores, read: Callable[[Store], list[T]]) -> list[T]:
    found: list[T] = []
    for known in stores.all:
        try:
            found += read(stores.open(known.name))
        except StokerError as error:
            raise StoreFailed(
                f"the database is damaged, and the store `{known.name}` that it would be made again from cannot be "
                f"read: {error.message}",
                hint="make the store reachable, then try again; nothing was changed",
            ) from error
    return found


def _runs_in(store: Store) -> list[Run]:
    keys = [stored.key for stored in store.list("runs")]
    return _loaded(Run, store, [key for key in keys if key.endswith("/run.json") and key.count("/") == 2])


def _datasets_in(store: Store) -> list[DatasetRecord]:
    keys = [stored.key for stored in store.list(layout.MANIFESTS.rstrip("/"))]
    return _loaded(DatasetRecord, store, [key for key in keys if layout.is_dataset_record(key)])


def _loaded(of: type[T], store: Store, keys: list[str]) -> list[T]:
    found = []
    for key in keys:
        data = store.get(key)
        try:
            found.append(wire.load(of, data))
        except (KeyError, TypeError, ValueError) as error:
            log.warning("%s cannot be read: %s", key, error)
    return found


def _remove(database: Path) -> None:
    for end in _BESIDE:
        database.with_name(database.name + end).unlink(missing_ok=True)
