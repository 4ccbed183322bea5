"""A damaged database is put aside and made again from what the store knows, so that no run is lost with it."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from pathlib import Path

from stoker.errors import StokerError
from stoker.model import wire
from stoker.model.run import Run
from stoker.server.database import Database
from stoker.stores import Store

log = logging.getLogger(__name__)


def rebuild(path: Path, store: Store) -> tuple[Database, str]:
    """The new database, and a sentence on what happened."""
    aside = path.with_name(f"{path.name}.damaged-{datetime.now(UTC):%Y%m%dT%H%M%S}")
    path.rename(aside)
    for extra in ("-wal", "-shm"):
        path.with_name(path.name + extra).unlink(missing_ok=True)
    runs = _recorded(store)
    database = Database.open(path)
    database.restore(runs)
    return database, f"the database was damaged; {len(runs)} runs were restored from the store, the old file is {aside}"


def _recorded(store: Store) -> list[Run]:
    runs: dict[str, Run] = {}
    for stored in store.list("runs"):
        if not stored.key.endswith("/run.json") or stored.key.count("/") != 2:
            continue
        try:
            run = wire.load(Run, store.get(stored.key))
        except (StokerError, KeyError, TypeError, ValueError) as error:
            log.warning("%s cannot be read: %s", stored.key, error)
            continue
        runs[run.name] = run
    return list(runs.values())
