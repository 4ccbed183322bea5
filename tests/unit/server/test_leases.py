"""How long a node may stay without its server: by what its run may spend, its time limit, its job, or a day."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from stoker.engine.nodes.lease import BESIDE_S, DEFAULT_S, lease_s, longest
from stoker.model.node import LAST_WORDS_S, Features
from stoker.model.orders import Wish
from stoker.model.run.money import UNLIMITED, Fuse
from stoker.model.run.run import Attempt, AttemptState, Run, RunState
from stoker.model.workspace.home import Home
from stoker.server.records.copies import FactsRecorder, Signing
from stoker.server.records.database import Database
from stoker.server.records.tables import StoreTable
from stoker.server.rounds.books import Visits
from stoker.server.rounds.ledger import Ledger
from stoker.server.rounds.outside import Clock
from stoker.server.rounds.performer import Performer
from stoker.server.stores.accesses import Accesses, Leases
from stoker.server.stores.stores import Keychain, StoreDirectory, Vault
from stoker.testing.fakes import FakeProvider

Make = Callable[..., Run]
DAYS = Features(lease_s=5 * 86_400.0, idle_s=600.0)


def attempt(now: datetime, **facts: Any) -> Attempt:
    return Attempt(1, "r-1", AttemptState.RUNNING, now, **facts)


def fuse(now: datetime, hours: float) -> Fuse:
    return Fuse(Decimal(str(hours)), Decimal(0), Decimal(1), now)


def test_a_run_that_nothing_limits_has_a_day(make_run: Make, now: datetime) -> None:
    assert lease_s(make_run(), attempt(now), None, DAYS, now) == DEFAULT_S == 86_400


def test_a_budget_gives_as_long_as_it_buys_and_the_fuse_speaks_first(make_run: Make, now: datetime) -> None:
    told = fuse(now - timedelta(hours=1), 31)
    assert lease_s(make_run(), attempt(now), told, DAYS, now) == 30 * 3600 + LAST_WORDS_S


def test_of_money_and_time_limit_the_shorter_counts(make_run: Make, now: datetime) -> None:
    run = make_run(job={"time_limit": 8 * 3600.0})
    begun = attempt(now - timedelta(hours=3), started_at=now - timedelta(hours=2))
    assert lease_s(run, begun, None, DAYS, now) == 6 * 3600 + BESIDE_S
    assert lease_s(run, begun, fuse(now, 2), DAYS, now) == 2 * 3600 + LAST_WORDS_S
    assert lease_s(run, begun, fuse(now, 90), DAYS, now) == 6 * 3600 + BESIDE_S


def test_a_node_that_says_it_began_before_it_was_asked_for_is_not_believed(make_run: Make, now: datetime) -> None:
    run = make_run(job={"time_limit": 8 * 3600.0})
    begun = attempt(now - timedelta(hours=1), started_at=now - timedelta(days=9))
    assert lease_s(run, begun, None, DAYS, now) == 7 * 3600 + BESIDE_S


def test_the_lease_of_the_job_comes_before_both(make_run: Make, now: datetime) -> None:
    run = make_run(job={"time_limit": 60.0, "lease": 7200.0})
    assert lease_s(run, attempt(now), fuse(now, 90), DAYS, now) == 7200


def test_the_account_bounds_whatever_the_job_says(make_run: Make, now: datetime) -> None:
    run = make_run(job={"lease": 30 * 86_400.0})
    assert lease_s(run, attempt(now), None, DAYS, now) == DAYS.lease_s
    assert lease_s(run, attempt(now), None, replace(DAYS, lease_s=8.0), now) == 8
    assert lease_s(run, attempt(now), None, Features(), now) == 0, "nodes that cost nothing have no lease"


@pytest.mark.parametrize(
    ("state", "wish", "run_state"),
    [
        (AttemptState.LOST, Wish.GO_ON, RunState.QUEUED),
        (AttemptState.RUNNING, Wish.CANCEL, RunState.RUNNING),
        (AttemptState.ENDED, Wish.GO_ON, RunState.SUCCEEDED),
    ],
)
def test_a_node_that_nobody_needs_any_more_has_ten_minutes(
    make_run: Make, now: datetime, state: AttemptState, wish: Wish, run_state: RunState
) -> None:
    over = replace(attempt(now), state=state)
    assert lease_s(make_run(wish=wish, state=run_state), over, None, DAYS, now) == 600


def test_a_kept_node_has_the_time_for_which_it_is_kept(make_run: Make, now: datetime) -> None:
    run = make_run(state=RunState.FAILED, kept_until=now + timedelta(hours=2))
    assert lease_s(run, attempt(now), None, DAYS, now) == 2 * 3600 + 600


def test_a_fuse_that_was_taken_off_limits_nothing(make_run: Make, now: datetime) -> None:
    off = replace(fuse(now, 1), stop_at_usd=UNLIMITED)
    assert lease_s(make_run(), attempt(now), off, DAYS, now) == DEFAULT_S


@pytest.mark.parametrize(
    ("job", "budget", "seconds"),
    [({}, False, DEFAULT_S), ({}, True, 5 * 86_400), ({"time_limit": 60.0}, True, 3660), ({"lease": 90.0}, True, 600)],
)
def test_no_lease_of_a_job_is_longer_than_the_longest(
    make_run: Make, job: dict[str, Any], budget: bool, seconds: float
) -> None:
    assert longest(make_run(job=job).job, DAYS, budget=budget) == seconds


class Moving(Clock):
    """Moves on demand, like a computer's clock while it sleeps."""

    def __init__(self) -> None:
        super().__init__()
        self.slept = timedelta()

    def now(self) -> datetime:
        return super().now() + self.slept


class Costing(FakeProvider):
    features = Features(lease_s=5 * 86_400.0, idle_s=600.0)

    def __init__(self) -> None:
        super().__init__()
        self.renewed: list[tuple[str, float]] = []

    def renew(self, key: str, lease_s: float) -> None:
        self.renewed.append((key, lease_s))


@pytest.fixture
def clock() -> Moving:
    return Moving()


@pytest.fixture
def leases(tmp_path: Path, clock: Moving) -> Leases:
    home, keychain = Home(tmp_path), Keychain(tmp_path / "keys")
    stores = StoreDirectory(home, StoreTable(Database.open(tmp_path / "db").engine, home.stores), keychain)
    return Leases({"cloud": Costing()}, stores, Accesses(stores, keychain, clock), clock)


def test_a_long_lease_is_renewed_every_few_minutes_and_at_once_after_a_sleep(
    leases: Leases, clock: Moving, make_run: Make, now: datetime
) -> None:
    run, one = make_run(job={"on": "cloud"}), attempt(now)
    lasting_s = leases.lasting_s(run, one)
    assert lasting_s == DEFAULT_S
    assert leases.is_due(one, lasting_s)
    leases.renew(run, one, lasting_s)
    assert not leases.is_due(one, lasting_s)
    clock.slept += timedelta(seconds=151)
    assert leases.is_due(one, lasting_s)


def test_a_lease_that_becomes_short_is_given_at_once(leases: Leases, make_run: Make, now: datetime) -> None:
    run, one = make_run(job={"on": "cloud"}), attempt(now)
    leases.renew(run, one, leases.lasting_s(run, one))
    over = replace(one, state=AttemptState.LOST)
    assert leases.is_due(over, leases.lasting_s(run, over))
    leases.renew(run, over, leases.lasting_s(run, over))
    assert not leases.is_due(over, leases.lasting_s(run, over))


def test_a_lease_that_becomes_long_is_given_at_once(leases: Leases, make_run: Make, now: datetime) -> None:
    run, one = make_run(job={"on": "cloud"}), attempt(now)
    leases.renew(run, one, 600.0)
    assert leases.is_due(one, 86_400.0)


def test_a_node_requested_ahead_is_marked_with_its_new_lease_in_the_round_after_its_orders(
    leases: Leases, make_run: Make, now: datetime
) -> None:
    run, one = make_run(job={"on": "cloud"}), attempt(now)
    leases.renew(run, one, 600.0)
    leases.renew(run, one, 86_400.0)  # with its orders: nothing is written on a node that exists
    assert leases.is_due(one, 86_400.0)
    leases.renew(run, one, 86_400.0)
    assert not leases.is_due(one, 86_400.0)


class Hanging(Costing):
    """A cloud that accepts a tag, and does not answer until it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.free = threading.Event(), threading.Event()

    def renew(self, key: str, lease_s: float) -> None:
        self.asked.set()
        self.free.wait(30)
        super().renew(key, lease_s)


def test_a_cloud_that_hangs_over_a_mark_keeps_no_lease_from_being_renewed(
    tmp_path: Path, clock: Moving, make_run: Make, now: datetime
) -> None:
    home, keychain, database = Home(tmp_path), Keychain(tmp_path / "keys"), Database.open(tmp_path / "db")
    cloud, stores = Hanging(), StoreDirectory(home, StoreTable(database.engine, home.stores), keychain)
    accesses, ledger = Accesses(stores, keychain, clock), Ledger(database, FactsRecorder(stores, Signing(keychain)))
    leases = Leases({"cloud": cloud}, stores, accesses, clock)
    performer = Performer({"cloud": cloud}, stores, leases, ledger, Vault(tmp_path), clock, Visits())
    run = make_run(job={"on": "cloud"}, attempts=(attempt(now),))
    one = run.attempts[-1]

    async def renewed() -> bool:
        await performer.speak_to(run)
        for _ in range(500):
            if not leases.is_due(one, leases.lasting_s(run, one)):
                return True
            await asyncio.sleep(0.01)
        return False

    async def story() -> None:
        assert await renewed()
        assert await asyncio.to_thread(cloud.asked.wait, 5)
        clock.slept += timedelta(seconds=151)
        assert await renewed(), "the next renewal waits for the mark of the last one"
        cloud.free.set()

    try:
        asyncio.run(story())
    finally:
        cloud.free.set()
