"""Removing runs: all of them at once in the database, then what is stored of them, tried as often as it takes."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from stoker.errors import Conflict, NotFound, StokerError
from stoker.model.run.run import Run
from stoker.model.workspace import layout
from stoker.server.code.environments import remove_unused
from stoker.server.code.unused import UnusedCode
from stoker.server.records.database import Database, Removal
from stoker.server.rounds.ledger import Ledger
from stoker.server.rounds.outside import call, call_far
from stoker.server.stores.stores import Stores
from stoker.stores import Store

log = logging.getLogger(__name__)

ANSWER_S = 20.0  # a caller waits no longer for what is stored: that goes on by itself
LANDING_S = 10.0  # outputs of a run that has just ended are waited for
_AT_ONCE = 8


class Removals:
    """A run is gone when the database says so. A server that dies behind that goes on when it starts again."""

    def __init__(
        self, ledger: Ledger, database: Database, stores: Stores, code: UnusedCode, environments: Path
    ) -> None:
        self._ledger = ledger
        self._database = database
        self._stores = stores
        self._code = code
        self._environments = environments
        self._turn = asyncio.Lock()
        self._under_way: set[asyncio.Task[None]] = set()
        self.trouble: dict[str, StokerError] = {}  # the name of a removed run to why something of it is still stored

    async def remove(self, names: Sequence[str]) -> dict[str, str]:
        """All or none. Returns which of them are still in their stores, and why: the server tries again. Raises where
        one of the runs has to stay, or its store cannot be reached now."""
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
        """The run, once its outputs are where they belong, if that does not take long."""
        run = await self._ledger.find(name)
        give_up = time.monotonic() + LANDING_S
        while run.landing and time.monotonic() < give_up:
            run = await self._ledger.wait(name, run.version, 0.5)
        return run

    def check(self, run: Run) -> None:
        """Raises Conflict where it cannot be removed now, with what to do."""
        if not run.state.ended:
            raise Conflict(f"`{run.name}` is {run.state}", hint=f"end it first: `stoker cancel {run.name}`")
        if run.kept_until:
            raise Conflict(f"the node of `{run.name}` is kept", hint=f"give it back first: `stoker release {run.name}`")
        if run.landing:
            raise Conflict(f"the outputs of `{run.name}` are being brought back", hint="try again in a moment")
        for other in self._ledger.open:
            if other.start and other.start.run_id == run.id and not other.started_at and not other.state.ended:
                raise Conflict(
                    f"`{other.name}` starts from the checkpoint of `{run.name}`",
                    hint=f"wait until it runs, or end it: `stoker cancel {other.name}`",
                )

    def _reach(self, run: Run) -> None:
        next(iter(self._stores.of(run).list(layout.run(run.id).rstrip("/"))), None)

    def _why(self, name: str) -> str:
        error = self.trouble.get(name)
        return error.message if error else "it is being removed"

    async def carry_out(self) -> None:
        """Removes what is left of removed runs. May be called at any time; what fails is left for the next time."""
        async with self._turn:
            left = await call(self._database.removals)
            gate = asyncio.Semaphore(_AT_ONCE)
            outcomes = await asyncio.gather(*(self._remove_stored(one, gate) for one in left))
            done = [one for one, succeeded in zip(left, outcomes, strict=True) if succeeded]
            if done and await self._remove_shared(done):
                await call(self._database.forget_removals, [one.id for one in done])

    async def _remove_stored(self, one: Removal, gate: asyncio.Semaphore) -> bool:
        try:
            async with gate:
                await call_far(lambda: remove_run(self._stores.open(one.store), one.id))
        except NotFound:  # the store is no longer known: nobody here can reach what lies in it
            log.warning("the store `%s` of the removed run %s is not known any more", one.store, one.name)
        except StokerError as error:
            log.warning("what is stored of the removed run %s: %s", one.name, error.message)
            self.trouble[one.name] = error
            return False
        self.trouble.pop(one.name, None)
        return True

    async def _remove_shared(self, done: Sequence[Removal]) -> bool:
        gone: dict[str, set[str]] = {}
        for one in done:
            gone.setdefault(one.store, set()).add(one.snapshot)
        try:
            await call_far(self._code.remove, self._known(gone))
            await call(remove_unused, self._environments, self._database.run_ids)
        except StokerError as error:
            log.warning("code that no run uses could not be removed: %s", error.message)
            self.trouble |= {one.name: error for one in done}
            return False
        except OSError as error:
            log.warning("an environment that no run uses could not be removed: %s", error)
        return True

    def _known(self, gone: Mapping[str, set[str]]) -> dict[str, set[str]]:
        names = {store.name for store in self._stores.all}
        return {name: snapshots for name, snapshots in gone.items() if name in names}


# Removes everything of a run from its store.


def remove_run(store: Store, run_id: str) -> None:
    """May fail and be repeated. The record goes last: as long as there is one, somebody knows of the rest."""
    top, record = layout.run(run_id), layout.record(run_id)
    store.remove_below(top)
    store.delete(record)
