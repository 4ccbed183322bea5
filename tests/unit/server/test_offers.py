"""A provider that cannot say what it offers, or has, is asked again, and less often the longer it fails. One that
answers late says nothing about what was requested meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
from poisonedworld import Roomy, World

from stoker.errors import LoginFailed
from stoker.model.node import Features, Need, NodeSight, Offer
from stoker.model.run.run import AttemptState, Run
from stoker.server.rounds.lookout import MOST_RETRY_S, Lookout, Offers
from stoker.testing.world.real.loop import VirtualClock, VirtualLoop
from stoker.testing.world.scenario import Timeline


class LoggedOut:
    """All that is asked of a provider here."""

    features = Features(market=True)

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self.answers_between = (float("inf"), float("inf"))
        self.asked: list[float] = []

    def offers(self, need: Need) -> list[Offer]:
        self._log_in()
        return []

    def look(self) -> list[NodeSight]:
        self._log_in()
        return []

    def _log_in(self) -> None:
        self.asked.append(self._timeline.now)
        if not self.answers_between[0] <= self._timeline.now < self.answers_between[1]:
            raise LoginFailed("the login has expired")


@pytest.fixture
def timeline() -> Timeline:
    return Timeline()


@pytest.fixture
def provider(timeline: Timeline) -> LoggedOut:
    return LoggedOut(timeline)


def look_for(seconds: float, timeline: Timeline, provider: LoggedOut, run: Run) -> Offers:
    """Rounds of a server, one in each second."""
    loop = VirtualLoop(timeline)
    offers = Offers({run.job.on: provider}, VirtualClock(timeline, loop, 0.0), lambda: None)  # type: ignore[dict-item]

    async def rounds() -> None:
        while True:
            offers.market([run])
            await asyncio.sleep(1.0)

    loop.create_task(rounds())
    while timeline.now < seconds and timeline.step():
        pass
    loop.bury()
    return offers


def test_a_provider_without_a_login_is_not_asked_every_second(
    timeline: Timeline, provider: LoggedOut, make_run: Callable[..., Run]
) -> None:
    offers = look_for(3600.0, timeline, provider, make_run(job={"on": "cloud"}))
    assert "cloud" in offers.trouble
    assert 3600 / (MOST_RETRY_S + 2) < len(provider.asked) < 400
    assert provider.asked[1] - provider.asked[0] <= 2.1  # it may have been a moment's failure


def test_once_it_has_answered_the_next_failure_is_a_first_one(
    timeline: Timeline, provider: LoggedOut, make_run: Callable[..., Run]
) -> None:
    provider.answers_between = (100.0, 200.0)
    offers = look_for(300.0, timeline, provider, make_run(job={"on": "cloud"}))
    answered = next(at for at in provider.asked if at >= 100.0)
    assert answered < 100.0 + MOST_RETRY_S + 2
    again = [at for at in provider.asked if at >= 200.0]
    assert again[1] - again[0] <= 2.1
    assert "cloud" in offers.trouble


def watched_for(seconds: float, timeline: Timeline, provider: LoggedOut) -> Lookout:
    """Rounds of a server with a run there, two in each second."""
    loop = VirtualLoop(timeline)
    lookout = Lookout({"cloud": provider}, VirtualClock(timeline, loop, 0.0), lambda: None)  # type: ignore[dict-item]

    async def rounds() -> None:
        while True:
            await lookout.look({"cloud"})
            await asyncio.sleep(0.5)

    loop.create_task(rounds())
    while timeline.now < seconds and timeline.step():
        pass
    loop.bury()
    return lookout


def test_machines_of_a_provider_without_a_login_are_looked_at_less_often_until_it_answers(
    timeline: Timeline, provider: LoggedOut
) -> None:
    provider.features = replace(provider.features, look_every_s=2.0)
    provider.answers_between = (1000.0, 1100.0)
    lookout = watched_for(1200.0, timeline, provider)
    failed = [at for at in provider.asked if at < 1000.0]
    assert 1000 / (MOST_RETRY_S + 1) < len(failed) < 150
    assert failed[1] - failed[0] <= 3.0, "it may have been a moment's failure"
    there = [at for at in provider.asked if 1000.0 <= at < 1100.0]
    assert there[0] <= 1000.0 + MOST_RETRY_S + 1 and len(there) > 30
    assert "cloud" in lookout.trouble


class Late(Roomy):
    """Lists what it has at first, and answers when it may."""

    features: ClassVar[Features] = Features(look_every_s=1.0, patience_s=3600.0)

    def __init__(self) -> None:
        super().__init__()
        self.may_answer = threading.Event()
        self.may_answer.set()

    def look(self) -> list[NodeSight]:
        listed = super().look()
        self.may_answer.wait(30)
        return listed


def test_a_node_that_is_requested_and_reports_during_a_look_is_not_lost(
    tmp_path: Path, make_run: Callable[..., Run]
) -> None:
    world, provider = World(tmp_path), Late()

    async def until(condition: Callable[[], object]) -> None:
        for _ in range(2000):
            await world.rounds(1)
            if condition():
                return
            await asyncio.sleep(0.005)
        raise AssertionError(condition)

    async def story() -> None:
        world.providers["cloud"] = provider
        world.assemble()
        name = await world.submit(make_run, job={"on": "cloud"})
        provider.may_answer.clear()  # a look without the node is under way
        await until(lambda: provider.nodes)
        run = await world.ledger.find(name)
        world.says(run, world.report(run))
        world.clock.passed_s += 30  # it is read while the look still takes its time
        provider.may_answer.set()
        for _ in range(100):
            await world.rounds(1)
            world.clock.passed_s += 0.1
            await asyncio.sleep(0.005)
        run = await world.ledger.find(name)
        assert [one.state for one in run.attempts] == [AttemptState.RUNNING]

    try:
        asyncio.run(story())
    finally:
        provider.may_answer.set()
        world.database.close()
