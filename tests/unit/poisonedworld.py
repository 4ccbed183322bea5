"""A server without an API, with runs whose nodes report anything: all of it is real, except for the machines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

from stoker.engine.decision import Decision
from stoker.errors import ProviderUnavailable
from stoker.model import wire
from stoker.model.node import Features, Need, NodeRequest, NodeSight, Offer
from stoker.model.orders import Wish
from stoker.model.run.money import Limit, Period
from stoker.model.run.report import Phase, Report
from stoker.model.run.run import Run
from stoker.model.workspace import layout
from stoker.model.workspace.home import Home
from stoker.server.records.copies import FactsRecorder, Signing
from stoker.server.records.database import Database
from stoker.server.records.tables import StoreTable
from stoker.server.rounds.books import Books, ClusterBook, LimitBook, Visits
from stoker.server.rounds.ledger import Ledger
from stoker.server.rounds.outside import Clock
from stoker.server.rounds.performer import Performer
from stoker.server.rounds.reconciler import Reconciler
from stoker.server.stores.accesses import Accesses, Leases
from stoker.server.stores.stores import StoreDirectory, Vault, open_keychain
from stoker.server.sweeps.book import SweepBook
from stoker.testing.fakes import FakeProvider

Make = Callable[..., Run]


class Roomy(FakeProvider):
    """Room for many, each of which costs."""

    features: ClassVar[Features] = Features(look_every_s=0.01, patience_s=3600.0)

    def offers(self, need: Need) -> list[Offer]:
        return [Offer("local", "one size", "nowhere", Decimal("0.10"), slots=1000)]

    def look(self) -> list[NodeSight]:
        return [NodeSight(key, state, usd_per_hour=Decimal("0.10")) for key, state in self.nodes.items()]


class Away(FakeProvider):
    """A provider whose every answer is a surprise."""

    def offers(self, need: Need) -> list[Offer]:
        raise RuntimeError("nobody expected this")

    def look(self) -> list[NodeSight]:
        raise RuntimeError("nor this")

    def start(self, request: NodeRequest) -> None:
        raise ProviderUnavailable("it is away")


class HandClock(Clock):
    """Moves on demand."""

    def __init__(self) -> None:
        super().__init__()
        self.passed_s = 0.0

    def now(self) -> datetime:
        return super().now() + timedelta(seconds=self.passed_s)

    def steady(self) -> float:
        return super().steady() + self.passed_s


class World:
    def __init__(self, root: Path) -> None:
        self.database = Database.open(root / "stoker.db")
        keychain = open_keychain(root / "credentials.json", "file")
        self.stores = StoreDirectory(Home(root), StoreTable(self.database.engine, root / "stores.json"), keychain)
        self.provider, self.clock = Roomy(), HandClock()
        self.providers = {"local": self.provider, "away": Away()}
        self.limits = LimitBook(self.database)
        self.limits.save(Limit(Period.DAY, Decimal(10_000)))
        self._keychain, self._root = keychain, root
        self._count = 0

    def assemble(self) -> None:
        """Within a running loop."""
        self.limits._past.clear()  # of ten thousand stories before this one
        self.ledger = Ledger(self.database, FactsRecorder(self.stores, Signing(self._keychain)))
        self.ledger.closed = self.limits.closed
        accesses = Accesses(self.stores, self._keychain, self.clock)
        leases = Leases(self.providers, self.stores, accesses, self.clock)
        performer = Performer(self.providers, self.stores, leases, self.ledger, Vault(self._root), self.clock, Visits())
        clusters = ClusterBook(self.database, self.providers)
        books = Books(self.limits, clusters, SweepBook(self.database))
        self.reconciler = Reconciler(self.ledger, self.stores, self.providers, performer, self.clock, books)

    async def submit(self, make_run: Make, **facts: Any) -> str:
        self._count += 1
        job = {"name": f"job{self._count}", "budget": "5", "deadline": "2h"}
        run = make_run(self._count, job=job | facts.pop("job", {}), submitted_at=self.clock.now(), **facts)
        added = await self.ledger.add(replace(run, id=f"{self._count:020x}"), f"key {self._count}", [])
        return added.name

    def says(self, run: Run, data: bytes) -> None:
        assert run.attempt
        self.stores.of(run).put(layout.report(run.id, run.attempt.number), data)

    def report(self, run: Run, **more: Any) -> bytes:
        assert run.attempt
        now = self.clock.now()
        return wire.dump(replace(Report(run.attempt.number, 0, Phase.RUNNING, now, 1, started_at=now), **more))

    async def rounds(self, count: int = 2) -> None:
        for _ in range(count):
            await self.reconciler.round()
            await asyncio.sleep(0)


async def cancelled_story(world: World, name: str) -> None:
    run = await world.ledger.find(name)
    if not run.state.ended:
        await world.ledger.change(name, lambda seen: Decision(replace(seen, wish=Wish.CANCEL)))
        for _ in range(4):
            await world.rounds()
            world.clock.passed_s += 50
    assert (await world.ledger.find(name)).state.ended
    for _ in range(3):
        await world.rounds()
        world.clock.passed_s += 30
    assert not world.provider.nodes, "a node was left"
