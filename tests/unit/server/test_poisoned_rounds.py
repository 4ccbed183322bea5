"""Whatever one run's node reports, the server's rounds continue, and every other run ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

import pytest
from forging import forged
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from poisonedworld import Make, Roomy, World, cancelled_story

from stoker.engine import rounds
from stoker.engine.decision import Decision
from stoker.errors import LoginFailed
from stoker.model import wire
from stoker.model.cause import Cause
from stoker.model.node import Features, Need, NodeRequest, NodeSight, Offer
from stoker.model.orders import Wish
from stoker.model.run.report import Outcome, Phase, Report
from stoker.model.run.run import AttemptState, Event, Run, RunState
from stoker.model.workspace import layout
from stoker.server.rounds import lookout


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.database.close()


async def poisoned_story(world: World, make_run: Make, words: list[bytes]) -> None:
    """The innocent run starts, works and ends next to one whose node reports this, which is cancelled at last."""
    world.assemble()
    poisoned, innocent = await world.submit(make_run), await world.submit(make_run)
    await world.rounds()
    victim, other = await world.ledger.find(poisoned), await world.ledger.find(innocent)
    assert (victim.state, other.state) == (RunState.STARTING, RunState.STARTING)
    world.says(other, world.report(other))
    for data in words:
        if (victim := await world.ledger.find(poisoned)).attempt and victim.attempt:
            world.says(victim, data)
        await world.rounds()
        world.clock.passed_s += 31
        await world.rounds()
    assert (await world.ledger.find(innocent)).state is RunState.RUNNING
    live = [await world.reconciler.live(run) for run in world.ledger.open]
    assert len(wire.dump(live)) < 20_000_000
    other = await world.ledger.find(innocent)
    world.says(other, world.report(other, beat=2, phase=Phase.DONE, outcome=Outcome.SUCCEEDED, exit_code=0))
    await world.rounds()
    assert (await world.ledger.find(innocent)).state is RunState.SUCCEEDED
    await cancelled_story(world, poisoned)


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(words=st.lists(forged(Report), min_size=1, max_size=3))
def test_an_innocent_run_comes_to_its_end_beside_one_whose_node_says_anything(
    world: World, make_run: Make, words: list[bytes]
) -> None:
    asyncio.run(poisoned_story(world, make_run, words))


def test_a_node_whose_reports_stay_unusable_is_lost_twice_and_then_the_run_fails(world: World, make_run: Make) -> None:
    async def story() -> None:
        world.assemble()
        name = await world.submit(make_run)
        for number in (1, 2):
            await world.rounds(4)
            run = await world.ledger.find(name)
            assert run.attempt and run.attempt.number == number
            world.says(run, b'{"at": "2026-03-01T12:00:00"}')
            await world.rounds()
            assert (await world.reconciler.live(run)).cause == Cause.REPORT_UNUSABLE
            assert list(world.reconciler.troubled) == [run.id]
            assert not (await world.ledger.find(name)).attempts[-1].state.over
            world.clock.passed_s += 31
            await world.rounds()
        ended = await world.ledger.find(name)
        assert (ended.state, ended.exit_code) == (RunState.FAILED, 125)
        assert ended.cause == Cause.REPORT_UNUSABLE and len(ended.attempts) == 2
        assert [one.state for one in ended.attempts] == [AttemptState.LOST] * 2
        kinds = [event.kind for event in world.database.events(ended.id)]
        assert kinds.count("report-refused") == 2
        assert kinds.count("failed") == 1
        world.clock.passed_s += 30
        await world.rounds(3)
        assert not world.provider.nodes
        assert not world.reconciler.troubled

    asyncio.run(story())


def test_a_report_that_cannot_be_fetched_from_a_store_that_answers_is_unusable(world: World, make_run: Make) -> None:
    async def story() -> None:
        world.assemble()
        name = await world.submit(make_run)
        await world.rounds(4)
        run = await world.ledger.find(name)
        assert run.attempt
        report = Path(world.stores.of(run).url.removeprefix("file://"), layout.report(run.id, run.attempt.number))
        report.parent.mkdir(parents=True, exist_ok=True)
        report.symlink_to(report)  # a link to itself, which nobody can read
        await world.rounds()
        assert (await world.reconciler.live(run)).cause == Cause.REPORT_UNUSABLE
        world.clock.passed_s += 31
        await world.rounds()
        lost = (await world.ledger.find(name)).attempts[0]
        assert (lost.state, "cannot be fetched" in lost.message) == (AttemptState.LOST, True)

    asyncio.run(story())


def test_an_agent_that_says_something_usable_again_is_believed(world: World, make_run: Make) -> None:
    async def story() -> None:
        world.assemble()
        name = await world.submit(make_run)
        await world.rounds()
        run = await world.ledger.find(name)
        for beat in range(1, 6):
            world.says(run, b"nonsense")
            await world.rounds()
            world.clock.passed_s += 20
            world.says(run, world.report(run, beat=beat))
            await world.rounds()
        run = await world.ledger.find(name)
        assert (run.state, len(run.attempts)) == (RunState.RUNNING, 1)
        assert (await world.reconciler.live(run)).reason == ""
        kinds = [event.kind for event in world.database.events(run.id)]
        assert kinds.count("report-refused") == 1, "a script that forges at every beat fills no timeline"

    asyncio.run(story())


def test_a_report_of_another_attempt_is_not_used(world: World, make_run: Make) -> None:
    async def story() -> None:
        world.assemble()
        name = await world.submit(make_run)
        await world.rounds()
        run = await world.ledger.find(name)
        world.says(run, world.report(run, attempt=7, outcome=Outcome.SUCCEEDED))
        await world.rounds()
        run = await world.ledger.find(name)
        assert run.state is RunState.STARTING
        assert "that of attempt 7" in (await world.reconciler.live(run)).reason

    asyncio.run(story())


def failing_for(name: str, real: Callable[..., Any], *, only_with_report: bool) -> Callable[..., Any]:
    """The engine with a bug that shows in one run only."""

    def decide(runs: Any, seen: Any, *rest: Any) -> Any:
        for run in runs:
            said = seen.get(run.id)
            if run.name == name and not run.state.ended and said and (said.report or not only_with_report):
                raise ZeroDivisionError("a bug")
        return real(runs, seen, *rest)

    return decide


@pytest.mark.parametrize("only_with_report", [True, False])
def test_a_run_that_nothing_can_be_decided_about_is_given_up_and_the_others_continue(
    world: World, make_run: Make, monkeypatch: pytest.MonkeyPatch, caplog: Any, only_with_report: bool
) -> None:
    async def story() -> None:
        world.assemble()
        broken, innocent = await world.submit(make_run), await world.submit(make_run)
        monkeypatch.setattr(lookout, "decide", failing_for(broken, rounds.decide, only_with_report=only_with_report))
        await world.rounds()
        for beat in range(1, 9):
            for name in (broken, innocent):
                run = await world.ledger.find(name)
                if run.attempt and not run.attempt.state.over:
                    world.says(run, world.report(run, beat=beat))
            await world.rounds()
            world.clock.passed_s += 20
        assert (await world.ledger.find(innocent)).state is RunState.RUNNING
        run = await world.ledger.find(broken)
        assert run.state is RunState.FAILED
        assert "ZeroDivisionError: a bug" in run.reason
        await world.rounds(3)
        assert [key.rpartition("-")[0] for key in world.provider.nodes] == [(await world.ledger.find(innocent)).id]

    with caplog.at_level(logging.WARNING):
        asyncio.run(story())
    assert any(record.exc_info and record.exc_info[0] is ZeroDivisionError for record in caplog.records)
    assert len(caplog.records) < 60, "the same trouble is not told at every round"


def test_cancel_ends_a_run_that_nothing_can_be_decided_about(
    world: World, make_run: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        world.assemble()
        name = await world.submit(make_run)
        await world.rounds()
        monkeypatch.setattr(lookout, "decide", failing_for(name, rounds.decide, only_with_report=False))
        await world.rounds()
        shown = await world.reconciler.live(await world.ledger.find(name))
        assert shown.cause == Cause.UNDECIDED and "ZeroDivisionError: a bug" in shown.reason
        assert shown.hint == f"stoker cancel {name}"
        await world.ledger.change(name, lambda seen: Decision(replace(seen, wish=Wish.CANCEL)))
        await world.rounds(3)
        run = await world.ledger.find(name)
        assert (run.state, run.exit_code) == (RunState.CANCELLED, 130)
        assert not world.provider.nodes

    asyncio.run(story())


def test_trouble_that_passes_leaves_no_trace(world: World, make_run: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        world.assemble()
        name = await world.submit(make_run)
        await world.rounds()
        with monkeypatch.context() as patch:
            patch.setattr(lookout, "decide", failing_for(name, rounds.decide, only_with_report=False))
            await world.rounds()
            world.clock.passed_s += 50
            await world.rounds()
        await world.rounds()
        world.clock.passed_s += 50
        await world.rounds(1)
        run = await world.ledger.find(name)
        assert run.state is RunState.STARTING
        assert not world.reconciler.troubled

    asyncio.run(story())


def test_one_provider_in_trouble_keeps_nobody_from_another(world: World, make_run: Make) -> None:
    async def story() -> None:
        world.assemble()
        stuck = await world.submit(make_run, job={"on": "away"})
        name = await world.submit(make_run)
        await world.rounds()
        assert (await world.ledger.find(name)).state is RunState.STARTING
        assert (await world.ledger.find(stuck)).state is RunState.QUEUED

    asyncio.run(story())


def test_a_run_that_cannot_be_saved_keeps_no_other_from_being_saved(
    world: World, make_run: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        world.assemble()
        broken, innocent = await world.submit(make_run), await world.submit(make_run)
        save = world.database.save

        def failing(some: list[tuple[Run, tuple[Event, ...]]]) -> None:
            if any(run.name == broken for run, _ in some):
                raise ValueError("it cannot be written down")
            save(some)

        monkeypatch.setattr(world.database, "save", failing)
        await world.rounds()
        assert (await world.ledger.find(innocent)).state is RunState.STARTING
        run = await world.ledger.find(broken)
        assert run.state is RunState.QUEUED
        assert "it cannot be saved" in (await world.reconciler.live(run)).reason
        assert [key.rpartition("-")[0] for key in world.provider.nodes] == [(await world.ledger.find(innocent)).id], (
            "what was not saved was done all the same"
        )

    asyncio.run(story())


def test_what_cannot_be_shown_of_one_run_does_not_break_the_list(
    world: World, make_run: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        world.assemble()
        name = await world.submit(make_run)
        run = await world.ledger.find(name)
        monkeypatch.setattr(world.reconciler, "_beside", lambda _run: 1 / 0)
        assert "unknown (ZeroDivisionError" in (await world.reconciler.live(run)).reason

    asyncio.run(story())


def test_a_run_saved_with_times_without_a_zone_is_read_with_one(make_run: Make) -> None:
    plain = wire.to_plain(make_run(started_at=datetime(2026, 3, 1, 12, tzinfo=UTC)))
    run = wire.from_plain(Run, plain | {"started_at": "2026-03-01T12:00:00"})
    assert run.started_at == datetime(2026, 3, 1, 12, tzinfo=UTC)


class Surprising(Roomy):
    """Starts nothing, for an unexpected reason."""

    def start(self, request: NodeRequest) -> None:
        raise TypeError("nobody thought of this")


def test_a_node_that_cannot_be_started_for_no_known_reason_is_tried_for_a_minute(world: World, make_run: Make) -> None:
    async def story() -> None:
        world.providers["odd"] = Surprising()
        world.assemble()
        odd, innocent = await world.submit(make_run, job={"on": "odd"}), await world.submit(make_run)
        await world.rounds(4)
        assert len((await world.ledger.find(odd)).attempts) == 1, "what passes in a moment costs no attempt"
        assert (await world.ledger.find(innocent)).state is RunState.STARTING
        for _ in range(8):
            world.clock.passed_s += 61
            await world.rounds(4)
        run = await world.ledger.find(odd)
        assert run.state is RunState.FAILED
        assert "TypeError: nobody thought of this" in run.reason

    asyncio.run(story())


def test_a_database_in_trouble_costs_no_run_its_life(
    world: World, make_run: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        world.assemble()
        names = [await world.submit(make_run), await world.submit(make_run)]

        def full(some: object) -> None:
            raise OSError("the disk is full")

        with monkeypatch.context() as patch:
            patch.setattr(world.database, "save", full)
            for _ in range(5):
                with pytest.raises(OSError, match="full"):
                    await world.reconciler.round()
                world.clock.passed_s += 61
        await world.rounds()
        assert [(await world.ledger.find(name)).state for name in names] == [RunState.STARTING] * 2

    asyncio.run(story())


class Expiring(Roomy):
    """A cloud whose login expires, and works again."""

    features: ClassVar[Features] = Features(look_every_s=0.01, patience_s=3600.0, market=True)
    expired = True

    def offers(self, need: Need) -> list[Offer]:
        self._check()
        return [replace(one, provider="cloud") for one in super().offers(need)]

    def look(self) -> list[NodeSight]:
        self._check()
        return super().look()

    def stop(self, key: str) -> None:
        self._check()
        super().stop(key)

    def _check(self) -> None:
        if self.expired:
            raise LoginFailed("nobody is logged in")


@pytest.fixture
def cloud(world: World) -> Expiring:
    found = world.providers["cloud"] = Expiring()
    return found


async def cancelled(world: World, name: str) -> Run:
    await world.ledger.change(name, lambda seen: Decision(replace(seen, wish=Wish.CANCEL)))
    await world.rounds()
    return await world.ledger.find(name)


def test_a_run_that_has_never_had_a_node_is_cancelled_although_its_cloud_cannot_be_asked(
    world: World, make_run: Make, cloud: Expiring
) -> None:
    async def story() -> None:
        world.assemble()
        name = await world.submit(make_run, job={"on": "cloud"})
        await world.rounds()
        assert (await world.ledger.find(name)).state is RunState.QUEUED
        ended = await cancelled(world, name)
        assert (ended.state, ended.cause) == (RunState.CANCELLED, Cause.CANCELLED)

    asyncio.run(story())


async def running(world: World, make_run: Make, cloud: Expiring) -> Run:
    cloud.expired = False
    world.assemble()
    name = await world.submit(make_run, job={"on": "cloud"})
    await world.rounds(6)
    run = await world.ledger.find(name)
    world.says(run, world.report(run))
    await world.rounds(4)
    run = await world.ledger.find(name)
    assert run.state is RunState.RUNNING, run.reason
    return run


async def released(world: World) -> None:
    """An unneeded node is stopped after it was seen for a while."""
    for _ in range(4):
        await world.rounds(3)
        world.clock.passed_s += 30


@pytest.mark.parametrize("state", [RunState.QUEUED, RunState.PAUSED])
def test_a_run_that_waits_between_attempts_is_cancelled_without_a_login_and_its_node_paid_until_it_is_seen_gone(
    world: World, make_run: Make, cloud: Expiring, state: RunState
) -> None:
    async def story() -> None:
        run = await running(world, make_run, cloud)
        assert run.attempt
        cloud.expired = True
        over = replace(run.attempt, state=AttemptState.LOST, ended_at=world.clock.now())
        await world.ledger.change(run.name, lambda seen: Decision(replace(seen, state=state).with_newest(over)))
        await world.rounds()
        assert (await world.ledger.find(run.name)).state is state
        ended = await cancelled(world, run.name)
        assert ended.state is RunState.CANCELLED
        assert ended.costing, "nobody has seen its machine gone"
        cloud.expired = False
        await released(world)
        assert not cloud.nodes, "it is released once somebody has logged in"
        assert not (await world.ledger.find(run.name)).costing

    asyncio.run(story())


def test_a_run_whose_node_has_said_that_it_was_cancelled_ends_without_a_login(
    world: World, make_run: Make, cloud: Expiring
) -> None:
    async def story() -> None:
        run = await running(world, make_run, cloud)
        cloud.expired = True
        unheard = await cancelled(world, run.name)
        assert unheard.state is RunState.RUNNING, "its node may still be at work"
        world.says(run, world.report(run, outcome=Outcome.CANCELLED, ended_at=world.clock.now(), beat=2))
        await world.rounds(4)
        ended = await world.ledger.find(run.name)
        assert (ended.state, ended.costing) == (RunState.CANCELLED, True)
        cloud.expired = False
        await released(world)
        assert not cloud.nodes

    asyncio.run(story())
