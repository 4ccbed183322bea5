"""A signed copy of every run in its store, from which the database can be rebuilt."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterable

from stoker.errors import HomeUnusable, StokerError
from stoker.model import wire
from stoker.model.run.run import Run
from stoker.model.workspace import layout
from stoker.server.rounds.outside import call, call_far
from stoker.server.stores.keychain import Keychain
from stoker.server.stores.stores import StoreDirectory
from stoker.stores.pacing import NEAR, pacing
from stoker.stores.sealed.signing import new_key, opened, signed

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
