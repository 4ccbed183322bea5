"""Removing runs: all at once in the database, then their objects in the stores, with retries."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from stoker.errors import Conflict, NotFound, StokerError
from stoker.model.run.run import Run
from stoker.model.workspace import layout
from stoker.server.code.unused import UnusedCode, remove_unused
from stoker.server.records.database import Database, RunRemoval
from stoker.server.rounds.ledger import Ledger
from stoker.server.rounds.outside import call, call_far
from stoker.server.stores.stores import StoreDirectory
from stoker.stores import Store

log = logging.getLogger(__name__)

ANSWER_S = 20.0  # the longest that a caller waits for the stores: the rest is removed in the background
LANDING_S = 10.0  # how long to wait for the outputs of a run that has just ended
_AT_ONCE = 8


class Removals:
    """A run is gone when the database says so. A server that dies afterwards continues at its next start."""

    def __init__(
        self, ledger: Ledger, database: Database, stores: StoreDirectory, code: UnusedCode, environments: Path
    ) -> None:
        self._ledger = ledger
        self._database = database
        self._stores = stores
        self._code = code
        self._environments = environments
        self._turn = asyncio.Lock()
        self._under_way: set[asyncio.Task[None]] = set()
        self.trouble: dict[str, StokerError] = {}  # by name of a removed run: why some of its objects still exist

    async def remove(self, names: Sequence[str]) -> dict[str, str]:
        """All or none. Returns which of them are still in their stores, and why: the server retries. Raises where one
        of the runs must stay, or its store is unreachable."""
        stores: dict[str, Run] = {}
        for name in names:
            run = await self._landed(name)
            self.check(run)
            stores[run.store] = run
        for run in stores.values():
            await call_far(self._reach, run)
        removed = await self._ledger.remove(names, self.check)
        task = asyncio.create_task(self.carry_out(), name="remove what is stored")
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        await asyncio.wait([task], timeout=ANSWER_S)
        waiting = {one.id for one in await call(self._database.removals)}
        return {run.name: self._why(run.name) for run in removed if run.id in waiting}

    async def _landed(self, name: str) -> Run:
        """The run, once its outputs are downloaded, if that does not take long."""
        run = await self._ledger.find(name)
        give_up = time.monotonic() + LANDING_S
        while run.landing and time.monotonic() < give_up:
            run = await self._ledger.wait(name, run.version, 0.5)
        return run

    def check(self, run: Run) -> None:
        """Raises Conflict where it cannot be removed now, with what to do."""
        if not run.state.ended:
            raise Conflict(f"`{run.name}` is {run.state}", hint=f"cancel it first: `stoker cancel {run.name}`")
        if run.kept_until:
            raise Conflict(f"the node of `{run.name}` is kept", hint=f"release it first: `stoker release {run.name}`")
        if run.landing:
            raise Conflict(f"the outputs of `{run.name}` are being downloaded", hint="try again in a moment")
        for other in self._ledger.open:
            if other.start and other.start.run_id == run.id and not other.started_at and not other.state.ended:
                raise Conflict(
                    f"`{other.name}` starts from the checkpoint of `{run.name}`",
                    hint=f"wait until it runs, or cancel it: `stoker cancel {other.name}`",
                )

    def _reach(self, run: Run) -> None:
        next(iter(self._stores.of(run).list(layout.run(run.id).rstrip("/"))), None)

    def _why(self, name: str) -> str:
        error = self.trouble.get(name)
        return error.message if error else "it is being removed"

    async def carry_out(self) -> None:
        """Deletes the objects of removed runs. May be called at any time; failures are retried the next time."""
        async with self._turn:
            left = await call(self._database.removals)
            gate = asyncio.Semaphore(_AT_ONCE)
            outcomes = await asyncio.gather(*(self._remove_stored(one, gate) for one in left))
            done = [one for one, succeeded in zip(left, outcomes, strict=True) if succeeded]
            if done and await self._remove_shared(done):
                await call(self._database.forget_removals, [one.id for one in done])

    async def _remove_stored(self, one: RunRemoval, gate: asyncio.Semaphore) -> bool:
        try:
            async with gate:
                await call_far(lambda: remove_run(self._stores.open(one.store), one.id))
        except NotFound:  # the store was removed from the workspace, so its contents are unreachable
            log.warning("the store `%s` of the removed run %s is unknown", one.store, one.name)
        except StokerError as error:
            log.warning("could not delete the removed run %s from its store: %s", one.name, error.message)
            self.trouble[one.name] = error
            return False
        self.trouble.pop(one.name, None)
        return True

    async def _remove_shared(self, done: Sequence[RunRemoval]) -> bool:
        gone: dict[str, set[str]] = {}
        for one in done:
            gone.setdefault(one.store, set()).add(one.snapshot)
        try:
            await call_far(self._code.remove, self._known(gone))
            await call(remove_unused, self._environments, self._database.run_ids)
        except StokerError as error:
            log.warning("could not delete unused code: %s", error.message)
            self.trouble |= {one.name: error for one in done}
            return False
        except OSError as error:
            log.warning("could not delete an unused environment: %s", error)
        return True

    def _known(self, gone: Mapping[str, set[str]]) -> dict[str, set[str]]:
        names = {store.name for store in self._stores.all}
        return {name: snapshots for name, snapshots in gone.items() if name in names}


# Deletes everything of a run from its store.


def remove_run(store: Store, run_id: str) -> None:
    """May fail and be repeated. The record goes last: as long as it exists, the rest can be found."""
    top, record = layout.run(run_id), layout.record(run_id)
    store.remove_below(top)
    store.delete(record)
