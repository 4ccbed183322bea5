"""A node is not considered silent before the store has answered."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.errors import StoreUnavailable
from stoker.model import wire
from stoker.model.job.job import Job
from stoker.model.run.report import Measured, MetricSummary, Outcome, Phase, Report
from stoker.model.run.run import Attempt, AttemptState, Run, RunState
from stoker.model.workspace import layout
from stoker.server.rounds.outside import Clock
from stoker.server.rounds.reports import Reports
from stoker.stores import Store
from stoker.testing.fakes import MemoryStore

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


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

    async def reach(self, name: str) -> Store:
        return self._store


@pytest.fixture
def run() -> Run:
    return _running()


def _running() -> Run:
    attempt = Attempt(1, "key-1", AttemptState.RUNNING, NOW)
    job = Job(name="ants", run="python train.py")
    return Run("000000000001", "ants-1", 1, job, "s", "python3", NOW, state=RunState.RUNNING, attempts=(attempt,))


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


def test_a_heartbeat_wakes_nobody_and_news_does(run: Run, now: Any) -> None:
    async def look() -> list[int]:
        far, wakes, counts = Far(), 0, []

        def wake() -> None:
            nonlocal wakes
            wakes += 1

        known = Reports(OneStore(far), Clock(), wake)  # type: ignore[arg-type]
        key = layout.report(run.id, 1)
        for beat, phase in enumerate((Phase.RUNNING, Phase.RUNNING, Phase.SAVING)):
            far.put(key, wire.dump(Report(1, 0, phase, now, beat)))
            known.of("key-1").due = 0.0
            await known.look([run], ())
            await settle(known)
            counts.append(wakes)
        return counts

    assert asyncio.run(look()) == [1, 1, 2]


def test_points_that_an_evicted_node_stored_after_its_last_heartbeat_count(run: Run, now: Any) -> None:
    async def story() -> None:
        store = Far()
        values: list[dict[str, float | None]] = [
            {"loss": 3.0},
            {"loss": 1.0, "acc": 0.5},
            {"loss": None},
            {"loss": 2.0},
        ]
        points = [Measured(now.timestamp(), 0, one, step) for step, one in enumerate(values, 1)]
        lines = [wire.dump(one).replace(b"\n", b"") + b"\n" for one in points]
        store.put(layout.metrics(run.id, 1), b"".join([*lines, b"not a point\n"]))
        evicted = replace(run.attempts[0], state=AttemptState.EVICTED)
        counted = {"loss": MetricSummary(3.0, 3.0, 3.0, 1, 1)}
        again = replace(run, attempts=(evicted, Attempt(2, "key-2", AttemptState.RUNNING, now)), metrics=counted)
        store.put(layout.report(run.id, 2), wire.dump(Report(2, 0, Phase.RUNNING, now, beat=1)))
        seen = reports(store)
        await seen.look([again], ())
        await settle(seen)
        assert seen.with_points(again) is again
        store.put(layout.report(run.id, 2), wire.dump(Report(2, 0, Phase.DONE, now, beat=2, outcome=Outcome.SUCCEEDED)))
        await seen.look([again], {"key-2"})
        await settle(seen)
        assert seen.with_points(again).metrics == {
            "loss": MetricSummary(2.0, 1.0, 3.0, 3, 4),
            "acc": MetricSummary(0.5, 0.5, 0.5, 1, 2),
        }

    asyncio.run(story())


def test_the_last_report_of_a_node_is_read_before_it_is_given_up(run: Run, now: Any) -> None:
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


class HandClock(Clock):
    """Moves on demand."""

    def __init__(self) -> None:
        super().__init__()
        self.passed_s = 0.0

    def steady(self) -> float:
        return 1000.0 + self.passed_s


class Hanging(MemoryStore):
    """Answers, but only after so long."""

    def __init__(self, clock: HandClock) -> None:
        super().__init__()
        self.clock, self.hangs_s = clock, 0.0

    def get(self, key: str, start: int = 0, size: int | None = None) -> bytes:
        self.clock.passed_s += self.hangs_s
        return super().get(key, start, size)


@given(
    looks=st.lists(st.tuples(st.floats(0.1, 3.0), st.sampled_from((0.0, 0.0, 0.0, 2.0, 9.0, 30.0, 59.0))), max_size=30)
)
def test_silence_counts_only_while_the_store_answers(looks: list[tuple[float, float]]) -> None:
    """Whatever the pauses between looks, and however long the store hangs in each: a silent agent is silent for no
    longer than the store has answered, and for exactly as long where it never hung."""
    clock, run = HandClock(), _running()
    store = Hanging(clock)
    seen = Reports(OneStore(store), clock, lambda: None)  # type: ignore[arg-type]  # all that is asked of it
    store.put(layout.report(run.id, 1), said(run, NOW))

    async def story() -> None:
        await seen.look([run], ())
        answered_s = 0.0
        for pause_s, hangs_s in looks:
            clock.passed_s += pause_s
            store.hangs_s = hangs_s
            await seen.look([run], ())
            answered_s += pause_s + (hangs_s if hangs_s <= 1.0 else 0.0)
            assert seen.of("key-1").silent_s <= answered_s + 1e-6
        if not any(hangs_s for _, hangs_s in looks):
            assert seen.of("key-1").silent_s == pytest.approx(answered_s)
        store.hangs_s = 0.0
        clock.passed_s += 200.0
        await seen.look([run], ())
        assert seen.of("key-1").silent_s > 100.0, "an agent that stays silent is found out"

    asyncio.run(story())


def test_a_node_that_hangs_with_its_store_gets_a_minute_to_write_again(run: Run, now: Any) -> None:
    clock = HandClock()
    store = Hanging(clock)
    seen = Reports(OneStore(store), clock, lambda: None)  # type: ignore[arg-type]  # all that is asked of it
    store.put(layout.report(run.id, 1), said(run, now))

    async def story() -> None:
        await seen.look([run], ())
        store.hangs_s = 30.0
        await seen.look([run], ())
        store.hangs_s = 0.0
        clock.passed_s += 59.0
        await seen.look([run], ())
        assert seen.of("key-1").silent_s == 0.0
        clock.passed_s += 20.0
        await seen.look([run], ())
        assert seen.of("key-1").silent_s > 15.0

    asyncio.run(story())


def test_a_store_that_has_lost_everything_is_away_and_no_node_is_blamed(run: Run, now: Any) -> None:
    async def story() -> None:
        store = MemoryStore()
        store.put(layout.orders(run.id, 1), b"{}")
        store.put(layout.report(run.id, 1), said(run, now))
        seen = reports(store)
        await seen.look([run], ())
        store.delete(layout.orders(run.id, 1))
        store.delete(layout.report(run.id, 1))
        await seen.look([run], ())
        assert "contents are missing" in seen.of("key-1").trouble
        assert seen.of("key-1").silent_s == 0.0
        store.put(layout.orders(run.id, 1), b"{}")
        await seen.look([run], ())
        assert seen.of("key-1").trouble == "", "a report that its own node removed is no fault of the store"

    asyncio.run(story())


def test_when_the_last_report_was_given_is_known_by_the_stores_clock(run: Run) -> None:
    """A node's clock may say anything."""
    store, before = MemoryStore(), datetime.now(UTC)
    seen = reports(store)
    key = layout.report(run.id, 1)
    store.put(key, wire.dump(Report(1, 0, Phase.RUNNING, NOW, beat=1)))
    asyncio.run(seen.look([run], set()))
    assert seen.of("key-1").said_at is None, "it is not the last"
    store.put(key, wire.dump(Report(1, 0, Phase.DONE, NOW, beat=2, outcome=Outcome.SUCCEEDED)))
    asyncio.run(seen.look([run], set()))
    said_at = seen.of("key-1").said_at
    assert said_at is not None
    assert before <= said_at <= datetime.now(UTC)
