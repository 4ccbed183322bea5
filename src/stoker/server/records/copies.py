"""A signed copy of every run in its store, and the rebuild of a damaged database from these copies."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from stoker.engine.nodes.nodes import restored
from stoker.errors import Corrupt, HomeUnusable, StokerError, StoreFailed
from stoker.model import wire
from stoker.model.cause import Cause
from stoker.model.run.run import Run
from stoker.model.workspace import layout
from stoker.model.workspace.home import Home
from stoker.server.records.database import Database
from stoker.server.records.tables import DatasetRecord, DatasetTable, StoreTable
from stoker.server.rounds.outside import call, call_far
from stoker.server.stores.stores import Keychain, StoreDirectory
from stoker.stores import NEAR, Store, pacing
from stoker.stores.signing import new_key, opened, signed

log = logging.getLogger(__name__)

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0


class FactsRecorder:
    """With a remote store, nothing waits for the copy: the newest facts are written as soon as possible."""

    def __init__(self, stores: StoreDirectory, signing: Signing) -> None:
        self._stores = stores
        self._signing = signing
        self._waiting: dict[str, Run] = {}
        self._writing: dict[str, asyncio.Task[None]] = {}

    async def keep(self, runs: Iterable[Run]) -> None:
        """A single lost write is harmless."""
        for run in runs:
            try:
                if pacing(await self._stores.reach(run.store)) is NEAR:
                    await call(self._write, run)
                    continue
            except StokerError as error:
                log.warning("could not write a copy of %s to its store: %s", run.name, error.message)
                continue
            self._waiting[run.id] = run
            if run.id not in self._writing:
                self._writing[run.id] = asyncio.create_task(self._write_newest(run.id), name=f"record {run.name}")

    async def forget(self, run: Run) -> None:
        """The run is about to be removed: nothing of it is written from here on."""
        self._waiting.pop(run.id, None)
        if task := self._writing.pop(run.id, None):
            task.cancel()
            await asyncio.wait([task])

    async def _write_newest(self, run_id: str) -> None:
        pause_s = _FIRST_PAUSE_S
        try:
            while run := self._waiting.pop(run_id, None):
                try:
                    await call_far(self._write, run)
                    pause_s = _FIRST_PAUSE_S
                except StokerError as error:
                    log.warning("could not write a copy of %s to its store yet: %s", run.name, error.message)
                    self._waiting.setdefault(run_id, run)
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        finally:
            if self._writing.get(run_id) is asyncio.current_task():
                del self._writing[run_id]

    def _write(self, run: Run) -> None:
        key = layout.record(run.id)
        self._stores.of(run).put(key, self._signing.sign(run.store, key, wire.dump(run)))


# Records in a store are signed by this server: other writers of the store can neither add nor change one.

NAME = "key of records"  # in the keychain


class Signing:
    """Called from several threads. A signature is valid at one key only: a copied record is invalid elsewhere."""

    def __init__(self, keychain: Keychain) -> None:
        self._keychain = keychain
        self._key = ""
        self._lock = threading.Lock()

    def sign(self, store: str, key: str, data: bytes) -> bytes:
        return signed(self._known(), data, f"{store} {key}")

    def opened(self, store: str, key: str, data: bytes) -> bytes:
        """Raises Corrupt where this server did not write it there. Raises HomeUnusable where that cannot be
        verified."""
        if not self._key and self._keychain.get(NAME) is None:
            raise HomeUnusable(
                f"the signing key of the records is not in {self._keychain.place}",
                hint="unlock the keyring or restore the file, then try again; nothing was changed. To start with an "
                "empty database, move the old one away",
                cause=Cause.SIGNING_KEY_MISSING,
            )
        return opened(self._known(), data, f"{store} {key}")

    def _known(self) -> str:
        with self._lock:
            if not self._key:
                self._key = self._keychain.get(NAME) or ""
            if not self._key:
                self._key = new_key()
                self._keychain.keep(NAME, self._key)
            return self._key


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
