"""A world whose server is the real one: objects on one database that may be dropped between any two awaits."""

from __future__ import annotations

import logging
import random
import sqlite3
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, Self

from sqlalchemy import create_engine
from sqlalchemy.pool import StaticPool

from stoker.engine.decision import Decision
from stoker.errors import StokerError
from stoker.model.node import Cluster
from stoker.model.run.run import Event, Run
from stoker.model.workspace.home import Home
from stoker.server.records.copies import FactsRecorder, Signing
from stoker.server.records.database import Change, Database
from stoker.server.records.migrations import migrate
from stoker.server.records.tables import ClusterTable, StoreTable
from stoker.server.rounds.books import Books, ClusterBook, LimitBook, QueueBook, Visits
from stoker.server.rounds.ledger import Ledger
from stoker.server.rounds.performer import Performer
from stoker.server.rounds.reconciler import Reconciler
from stoker.server.stores.accesses import Accesses, Leases
from stoker.server.stores.stores import Keychain, StoreDirectory, Vault
from stoker.server.sweeps.book import SweepBook
from stoker.testing.world.cloud import WorldLeases, WorldMachine
from stoker.testing.world.promises import PromiseBroken
from stoker.testing.world.real.loop import VirtualClock, VirtualLoop
from stoker.testing.world.real.outside import FAR, NEAR, WorldProvider, WorldStore
from stoker.testing.world.scenario import Scenario
from stoker.testing.world.server import LOOK_S
from stoker.testing.world.world import World

NOWHERE = Path("/nonexistent/stoker")  # nothing is read or written there
MOST_STEPS = 90  # about two rounds

Request = Callable[[Ledger], Coroutine[Any, Any, object]]


class MemoryKeyring:
    """The interface of a system keyring, for the duration of the world."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], str] = {}

    def get_password(self, service: str, username: str) -> str | None:
        return self._kept.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        self._kept[service, username] = password

    def delete_password(self, service: str, username: str) -> None:
        self._kept.pop((service, username), None)


class RealServer:
    """What the world sees: the running server, or none."""

    def __init__(self, world: RealWorld, store: WorldStore, provider: WorldProvider) -> None:
        self._world = world
        self._timeline = world.timeline
        self._store = store
        self._provider = provider
        self._keychain = Keychain(NOWHERE / "credentials", MemoryKeyring())
        self.database = WorldDatabase()
        self._table = ClusterTable(self.database.engine)
        for cluster in world.scenario.clusters:
            self._table.save(cluster)
        self.deaf = 0  # how many faults make the store unusable
        self.up = False
        self.clock_wrong_s = 0.0
        self._graves: list[VirtualLoop] = []  # dead loops, with everything they held
        self._asked: list[Request] = []  # pending requests: repeated when a server is back
        self._start()

    @property
    def saved(self) -> dict[str, Run]:
        return self.database.saved

    @property
    def now(self) -> datetime:
        return self._clock.now()

    @property
    def failures(self) -> list[str]:
        return self._loop.failures

    def bury(self) -> None:
        """The world has ended."""
        for loop in (*self._graves, self._loop):
            loop.bury()

    def add(self, run: Run) -> None:
        """Submits it, and retries until the server has answered."""
        self._ask(lambda ledger: ledger.add(run, run.id, []))

    def change(self, run_id: str, how: Callable[[Run], Decision]) -> None:
        name = self.saved[run_id].name
        self._ask(lambda ledger: ledger.change(name, how))

    def cluster_changed(self, cluster: Cluster) -> None:
        """Saved by the server, or found by it when it starts."""
        if self.up:
            self._pools.save(cluster)
        else:
            self._table.save(cluster)

    def wake(self, seconds: float = LOOK_S) -> None:
        """Something happened that a look would show by then."""
        self._timeline.after(seconds, self._look)

    def catch_up(self) -> None:
        """Skips nothing that a look would show."""

    def deafen(self, by: int) -> None:
        self.deaf += by
        self.wake()

    def crash(self, seconds: float) -> None:
        """Pending actions are dropped."""
        self._world.note(f"the server is killed, and is back in {seconds:.0f} s")
        self.up = False
        self._loop.kill()
        self._graves.append(self._loop)
        self._timeline.after(seconds, self._start)

    def crash_soon(self, where: int, seconds: float) -> None:
        """After some more steps of its loop."""
        drawn = random.Random(f"{self._world.scenario.seed} {self._timeline.now} {where}")  # no secret
        self._loop.dies_in = drawn.randrange(MOST_STEPS)
        self._loop.died = lambda: self.crash(seconds)
        self._look()

    def _look(self) -> None:
        self._provider.stirred_at = self._timeline.now
        if self.up:
            self._reconciler.wake()

    def _start(self) -> None:
        self._loop = VirtualLoop(self._timeline)
        self._clock = VirtualClock(self._timeline, self._loop, self.clock_wrong_s)
        self._store.takes = self._take
        self._ledger, self._reconciler = self._assembled()
        self.up = True
        self._loop.create_task(self._main(self._ledger, self._reconciler))

    def _take(self, seconds: float) -> None:
        self._loop.taking_s += seconds

    def _assembled(self) -> tuple[Ledger, Reconciler]:
        """As `server/service.py`, without the API."""
        providers = {self._world.provider: self._provider}
        table = StoreTable(self.database.engine, NOWHERE / "stores")
        stores = StoreDirectory(Home(NOWHERE), table, self._keychain, folder=self._store)
        accesses = Accesses(stores, self._keychain, self._clock)
        ledger = Ledger(self.database, FactsRecorder(stores, Signing(self._keychain)))
        leases = Leases(providers, stores, accesses, self._clock)
        vault = Vault(NOWHERE / "secrets")
        performer = Performer(providers, stores, leases, ledger, vault, self._clock, Visits())
        limits = LimitBook(self.database)
        self._pools, book = ClusterBook(self.database, providers), QueueBook(self.database)

        def closed(run: Run) -> None:
            limits.closed(run)
            book.closed(run)

        ledger.closed = closed
        books = Books(limits, self._pools, SweepBook(self.database), book)
        return ledger, Reconciler(ledger, stores, providers, performer, self._clock, books)

    async def _main(self, ledger: Ledger, reconciler: Reconciler) -> None:
        await ledger.load()
        for request in list(self._asked):
            self._loop.create_task(self._served(request))
        await reconciler.run()

    def _ask(self, request: Request) -> None:
        self._asked.append(request)
        if self.up:
            self._loop.create_task(self._served(request))

    async def _served(self, request: Request) -> None:
        try:
            await request(self._ledger)
        except StokerError as error:
            self._world.note(f"refused: {error.message}")
        if request in self._asked:
            self._asked.remove(request)
        self._reconciler.wake()


class WorldDatabase(Database):
    def __init__(self) -> None:
        connection = sqlite3.connect(":memory:", check_same_thread=False)
        _empty().backup(connection)
        super().__init__(create_engine("sqlite://", creator=lambda: connection, poolclass=StaticPool))
        self.saved: dict[str, Run] = {}  # by id, as last written
        self.told: list[str] = []  # unread events

    def add(self, run: Run, submission: str, events: Iterable[Event]) -> Run:
        added = super().add(run, submission, events)
        self.saved[added.id] = added
        return added

    def save(self, changes: Iterable[Change]) -> None:
        changes = list(changes)
        super().save(changes)
        for run, events in changes:
            self.saved[run.id] = run
            self.told += [f"{run.name}: {event.text}" for event in events]


@cache
def _empty() -> sqlite3.Connection:
    """With all tables: creating them takes longer than most lives."""
    connection = sqlite3.connect(":memory:", check_same_thread=False)
    engine = create_engine("sqlite://", creator=lambda: connection, poolclass=StaticPool)
    with engine.begin() as opened:
        migrate(opened)
    return connection


class RealWorld(World):
    def __init__(self, scenario: Scenario, *, trace: bool = False) -> None:
        self._found: PromiseBroken | None = None  # inside the server, which would treat it as its own error
        super().__init__(scenario, trace=trace)
        self.cloud.made = self._made

    def _furnish(self) -> None:
        scenario = self.scenario
        cloud = bool(scenario.places)
        features = replace(self.features, market=cloud, spot=cloud, shares_files=not cloud, look_idle_s=30.0)
        provider = WorldProvider(self.cloud, self.timeline, features, None if cloud else scenario.slots)
        self.stored_leases = StoredLeases(self.cloud, self.timeline, scenario.idle_s)
        self.leases = self.stored_leases
        self.server = self.real = RealServer(self, WorldStore(self, FAR if cloud else NEAR), provider)

    def live(self) -> Self:
        with _listening() as surprises:
            self._surprises = surprises
            try:
                super().live()
            finally:
                self.real.bury()
        for run in self.real.saved.values():
            if (kept := self.real.database.find(run.name)) != run:
                raise PromiseBroken("what is saved can be read", f"{run.name} was saved as {run} but is read as {kept}")
        return self

    def check(self) -> None:
        super().check()
        if self.trace is not None:
            for told in self.real.database.told:
                self.note(told)
        self.real.database.told.clear()
        if self._found:
            raise self._found
        if surprises := self._surprises + self.real.failures:
            raise PromiseBroken("the server does not fail", surprises[0])

    def _made(self, machine: WorldMachine) -> None:
        try:
            self.promises.made(machine)
        except PromiseBroken as found:
            self._found = self._found or found


class _Surprises(logging.Handler):
    """Errors for which the server logs a traceback, which nobody expected."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1]:
            error = record.exc_info[1]
            self.said.append(f"{record.getMessage()} ({type(error).__name__} in {_where(error)})")


def _where(error: BaseException) -> str:
    trace = error.__traceback__
    while trace and trace.tb_next:
        trace = trace.tb_next
    return f"{trace.tb_frame.f_code.co_qualname}, line {trace.tb_lineno}" if trace else "nowhere"


@contextmanager
def _listening() -> Iterator[list[str]]:
    logger, surprises = logging.getLogger("stoker.server"), _Surprises()
    before = logger.propagate, logger.level
    logger.addHandler(surprises)
    logger.propagate = False
    logger.setLevel(logging.WARNING)
    try:
        yield surprises.said
    finally:
        logger.removeHandler(surprises)
        logger.propagate = before[0]
        logger.setLevel(before[1])


class StoredLeases(WorldLeases):
    """Machines look often, and their looks need no events: a lease is seen when it is written, or as soon as a machine
    that was cut off can read again."""

    def given(self, key: str, seconds: float) -> None:
        """The server has written one."""
        machine = self._cloud.machines.get(key)
        if machine is None:
            return
        machine.lease_s, machine.given_at, machine.renewed = seconds, self._timeline.now, True
        self.settle(machine)

    def settle(self, machine: WorldMachine) -> None:
        """`renewed`: there is one that the machine has not seen. An idle machine stays only for a short time."""
        if not machine.lease_s or not machine.up or machine.off:
            return
        if machine.renewed and not self.is_cut(machine):
            machine.renewed = False
            self._run_out(machine)
        elif self.is_idle(machine) and self._timeline.now + self._lasts_s(machine) < machine.lease_until:
            self._run_out(machine)
