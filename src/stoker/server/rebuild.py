"""A damaged database is put aside and made again from what the stores know, so that no run is lost with it."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from pathlib import Path

from stoker.errors import StokerError, StoreFailed
from stoker.model import wire
from stoker.model.home import Home
from stoker.model.run import Run
from stoker.server.database import Database
from stoker.server.keychain import Keychain
from stoker.server.stores import Stores
from stoker.server.storetable import StoreTable
from stoker.stores import Store

log = logging.getLogger(__name__)

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
    runs = _recorded(Stores(home, table, keychain))
    database.restore(runs)
    database.close()
    aside = home.database.with_name(f"{home.database.name}.damaged-{datetime.now(UTC):%Y%m%dT%H%M%S}")
    home.database.rename(aside)
    _remove(home.database)
    fresh.rename(home.database)
    told = f"the database was damaged; {len(runs)} runs were restored from the store, the old file is {aside}"
    return Database.open(home.database), told


def _recorded(stores: Stores) -> list[Run]:
    runs: dict[str, Run] = {}
    for known in stores.all:
        try:
            for run in _runs_in(stores.open(known.name)):
                runs[run.name] = run
        except StokerError as error:
            raise StoreFailed(
                f"the database is damaged, and the store `{known.name}` that it would be made again from cannot be "
                f"read: {error.message}",
                hint="make the store reachable, then try again; nothing was changed",
            ) from error
    return list(runs.values())


def _runs_in(store: Store) -> list[Run]:
    found = []
    for stored in store.list("runs"):
        if not stored.key.endswith("/run.json") or stored.key.count("/") != 2:
            continue
        data = store.get(stored.key)
        try:
            found.append(wire.load(Run, data))
        except (KeyError, TypeError, ValueError) as error:
            log.warning("%s cannot be read: %s", stored.key, error)
    return found


def _remove(database: Path) -> None:
    for end in _BESIDE:
        database.with_name(database.name + end).unlink(missing_ok=True)
