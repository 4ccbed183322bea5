"""Removing runs and what no run uses any more, and the background work of the server."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from stoker.containers import discard
from stoker.engine.pruning import prune
from stoker.errors import Conflict, Missing, NotFound, StokerError
from stoker.files import take, write_whole
from stoker.model import untrusted, wire
from stoker.model.cause import Cause
from stoker.model.environment import COMPLETE, HEAD_BYTES, BuiltEnvironment
from stoker.model.orders import lock_of, users_of, venv_used
from stoker.model.run.run import PruneRule, Run, Spared
from stoker.model.workspace import layout
from stoker.model.workspace.home import Home
from stoker.model.workspace.store import FOLDER
from stoker.providers import surroundings
from stoker.server.codeshelf import Arrivals, Coming, Shelves
from stoker.server.records.database import Database, RunRemoval
from stoker.server.rounds.ledger import Ledger
from stoker.server.rounds.outside import Clock, call, call_far
from stoker.server.stores.stores import StoreDirectory
from stoker.stores import Store
from stoker.stores.trees.clearing import clear, remove_unused

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


def remove_unused_code(folder: Path, runs: Callable[[], set[str]]) -> int:
    """Returns how many were deleted. `runs` returns the ids of all runs. A venv that is being built is skipped until
    next time, and so is one of an older Stoker without a list of its users."""
    marks = {venv: set(_names(users_of(venv))) for venv in _venvs(folder)}
    known = runs()  # after reading the marks: a run exists before its agent leaves one
    removed = 0
    for venv, users in marks.items():
        for gone in users - known:
            (users_of(venv) / gone).unlink(missing_ok=True)
        if not users & known and remove_venv(venv):
            removed += 1
    return removed


def _venvs(folder: Path) -> list[Path]:
    return [venv for name in _names(folder) if (venv := venv_used(folder / name))]


def _names(folder: Path) -> list[str]:
    try:
        return [one.name for one in folder.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []


def remove_venv(venv: Path) -> bool:
    """Repeatable, also after a crash: the folder of its users is deleted last."""
    lock = os.open(lock_of(venv), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if not take(lock) or _names(users_of(venv)):
            return False
        _discard_image(venv)
        clear(str(venv))
        lock_of(venv).unlink(missing_ok=True)
        with suppress(OSError):  # gone, or used by a process with a new lock
            users_of(venv).rmdir()
        return True
    finally:
        os.close(lock)


def _discard_image(place: Path) -> None:
    """Of an image that was built on this computer, the folder only says what it is. One that a container runs in
    stays."""
    with suppress(OSError, StokerError):
        built = untrusted.load(BuiltEnvironment, (place / COMPLETE).read_bytes()[:HEAD_BYTES], datetime.now(UTC))
        if built.image:
            discard(built.image, surroundings({}))


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
            raise Conflict(
                f"`{run.name}` is {run.state}",
                hint=f"cancel it first: `stoker cancel {run.name}`",
                cause=Cause.RUN_ACTIVE,
            )
        if run.kept_until:
            raise Conflict(
                f"the node of `{run.name}` is kept",
                hint=f"release it first: `stoker release {run.name}`",
                cause=Cause.NODE_KEPT,
            )
        if run.landing:
            raise Conflict(
                f"the outputs of `{run.name}` are being downloaded",
                hint="try again in a moment",
                cause=Cause.RUN_LANDING,
            )
        for other in self._ledger.open:
            if other.start and other.start.run_id == run.id and not other.started_at and not other.state.ended:
                raise Conflict(
                    f"`{other.name}` starts from the checkpoint of `{run.name}`",
                    hint=f"wait until it runs, or cancel it: `stoker cancel {other.name}`",
                    cause=Cause.CHECKPOINT_NEEDED,
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
        except NotFound:  # its store was removed from the workspace, so its files are unreachable
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
            await call(remove_unused_code, self._environments, self._database.run_ids)
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


_EVERY_S = 3600.0
_AGAIN_S = 60.0  # where a store was unreachable


class Housekeeping:
    def __init__(self, ledger: Ledger, database: Database, removals: Removals, clock: Clock, home: Home) -> None:
        self._ledger = ledger
        self._database = database
        self._removals = removals
        self._clock = clock
        self._file = home.prune_rule
        self._software = home.software

    async def run(self) -> None:
        while True:
            try:
                await self.round()
            except Exception as error:
                log.warning("housekeeping failed: %s", error, exc_info=error)
            await asyncio.sleep(_AGAIN_S if self._removals.trouble else _EVERY_S)

    async def round(self) -> None:
        if await call(self._database.removals):
            await self._removals.carry_out()
        if rule := self.rule:
            await self._apply(rule)

    async def _apply(self, rule: PruneRule) -> None:
        if not rule.experiment:
            await call(remove_unused, self._software, rule.older_than_s, self._now().timestamp())
        gone, _ = await self.prunable(rule)
        if not gone:
            return
        log.info("removing %d runs by the rule in %s: %s", len(gone), self._file, ", ".join(run.name for run in gone))
        for store in {run.store for run in gone}:  # an unreachable one does not block the others
            try:
                await self._removals.remove([run.name for run in gone if run.store == store])
            except StokerError as error:
                log.warning("could not remove runs in the store `%s` by the rule: %s", store, error.message)

    async def prunable(self, rule: PruneRule) -> tuple[list[Run], list[Spared]]:
        """What a rule would remove, oldest first, and what stays although it is old."""
        ended = await call(self._database.ended_runs)
        known = {run.id for run in ended}
        open_runs = [run for run in self._ledger.open if run.id not in known]
        return prune(ended, open_runs, rule, self._now())

    @property
    def rule(self) -> PruneRule | None:
        """The rule of this server; None: runs are removed only on request."""
        try:
            return wire.from_plain(PruneRule, json.loads(self._file.read_bytes()))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, LookupError, TypeError) as error:
            log.warning("could not use %s, so no run is removed by it: %s", self._file, error)
            return None

    def keep_rule(self, rule: PruneRule | None) -> None:
        if rule is None:
            self._file.unlink(missing_ok=True)
            return
        write_whole(self._file, wire.dump(rule))

    def _now(self) -> datetime:
        return self._clock.now()
