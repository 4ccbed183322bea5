"""Nobody concludes that a node said nothing before the store could be asked."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from stoker.errors import StoreUnavailable
from stoker.model import layout, wire
from stoker.model.report import Outcome, Phase, Report
from stoker.model.run import Attempt, AttemptState, Run, RunState
from stoker.server.clock import Clock
from stoker.server.reports import Reports
from stoker.stores import Store
from stoker.testing.memory_store import MemoryStore


class Far(MemoryStore):
    """A store over a network, which can be away."""

    def __init__(self) -> None:
        super().__init__("https://far")
        self.away = False
        self.asked = 0

    def get(self, key: str, start: int = 0, size: int | None = None) -> bytes:
        self.asked += 1
        if self.away:
            raise StoreUnavailable("it cannot be reached")
        return super().get(key, start, size)


class OneStore:
    def __init__(self, store: Store) -> None:
        self._store = store

    def of(self, run: Run) -> Store:
        return self._store


@pytest.fixture
def run(make_run: Callable[..., Run], now: Any) -> Run:
    return make_run(state=RunState.RUNNING, attempts=(Attempt(1, "key-1", AttemptState.RUNNING, now),))


def reports(store: Store) -> Reports:
    return Reports(OneStore(store), Clock(), lambda: None)  # type: ignore[arg-type]  # all that is asked of it


def said(run: Run, now: Any, **more: Any) -> bytes:
    return wire.dump(Report(1, 0, Phase.RUNNING, now, beat=1, **more))


async def settle(of: Reports) -> None:
    while of._under_way:
        await asyncio.sleep(0.001)


def test_a_report_from_a_far_store_arrives_without_anybody_waiting(run: Run, now: Any) -> None:
    async def story() -> None:
        store = Far()
        store.put(layout.report(run.id, 1), said(run, now))
        seen = reports(store)
        await seen.look([run], ())
        assert seen.of("key-1").report is None
        await settle(seen)
        assert seen.of("key-1").report.phase is Phase.RUNNING  # type: ignore[union-attr]

    asyncio.run(story())


def test_a_far_store_is_not_asked_at_every_look(run: Run, now: Any) -> None:
    async def story() -> None:
        store = Far()
        store.put(layout.report(run.id, 1), said(run, now))
        seen = reports(store)
        for _ in range(50):
            await seen.look([run], ())
            await settle(seen)
        assert store.asked == 1

    asyncio.run(story())


def test_a_node_that_is_gone_is_heard_before_it_is_given_up(run: Run, now: Any) -> None:
    async def story() -> None:
        store = Far()
        store.put(layout.report(run.id, 1), said(run, now))
        seen = reports(store)
        await seen.look([run], ())
        await settle(seen)
        store.put(layout.report(run.id, 1), said(run, now, outcome=Outcome.SUCCEEDED))
        store.away = True
        for _ in range(3):
            await seen.look([run], {"key-1"})
            await settle(seen)
            assert not seen.heard_last("key-1"), "the store was not there to be asked"
        assert "cannot be reached" in seen.of("key-1").trouble
        store.away = False
        seen.of("key-1").due = 0.0  # as when its time has come
        await seen.look([run], {"key-1"})
        assert not seen.heard_last("key-1")
        await settle(seen)
        assert seen.heard_last("key-1")
        assert seen.of("key-1").report.outcome is Outcome.SUCCEEDED  # type: ignore[union-attr]

    asyncio.run(story())


def test_silence_of_the_store_is_not_silence_of_the_agent(run: Run, now: Any) -> None:
    async def story() -> None:
        store = Far()
        store.put(layout.report(run.id, 1), said(run, now))
        seen = reports(store)
        await seen.look([run], ())
        await settle(seen)
        before = seen.of("key-1").since
        store.away = True
        seen.of("key-1").due = 0.0
        await seen.look([run], ())
        await settle(seen)
        assert seen.of("key-1").since > before

    asyncio.run(story())


def test_a_store_nearby_is_read_at_every_look(run: Run, now: Any) -> None:
    async def story() -> None:
        store = MemoryStore()
        seen = reports(store)
        await seen.look([run], {"key-1"})
        assert seen.of("key-1").report is None
        assert seen.heard_last("key-1"), "it said nothing, and that is known"
        store.put(layout.report(run.id, 1), said(run, now))
        await seen.look([run], ())
        assert seen.of("key-1").report is not None

    asyncio.run(story())
