"""The minimum of a cluster: the server starts its nodes, without anybody's run."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, cast

from stoker.model import wire
from stoker.model.node import Cluster, Features
from stoker.model.run.report import Outcome, Phase, Report
from stoker.model.run.run import Run, RunState
from stoker.model.workspace import layout
from stoker.model.workspace.home import Home
from stoker.providers import Provider
from stoker.server.records.database import Database
from stoker.server.rounds.outside import Clock
from stoker.server.service import Service, assemble
from stoker.server.settings import ServerSettings
from stoker.server.warming import AGAIN_S, FAILED_S, Warming
from stoker.testing.fakes import FakeProvider

DEV = Cluster("dev", "cloud", max_nodes=3, min_nodes=1, owner="anna")


class Cloud(FakeProvider):
    features: ClassVar[Features] = Features(look_every_s=0.01, warm=True, market=True)


class Later(Clock):
    passed_s = 0.0

    def steady(self) -> float:
        return super().steady() + self.passed_s


class Desk:
    """A server without its API, with one cloud."""

    def __init__(self, root: Path) -> None:
        home, self.cloud = Home(root), Cloud()
        root.mkdir(mode=0o700, exist_ok=True)
        self.service: Service = assemble(ServerSettings(home), "token", Database.open(home.database))
        cast(dict[str, Provider], self.service.providers)["cloud"] = self.cloud
        self.clock = Later()
        self.warming = Warming(replace(self.service, clock=self.clock))

    async def rounds(self) -> None:
        await self.warming.round()
        for _ in range(8):
            await self.service.reconciler.round()
            await asyncio.sleep(0.05)

    async def ends(self, run: Run, outcome: Outcome = Outcome.SUCCEEDED) -> None:
        now = self.service.clock.now()
        report = Report(1, 0, Phase.DONE, now, 2, started_at=now, ended_at=now, outcome=outcome, exit_code=0)
        self.service.stores.of(run).put(layout.report(run.id, 1), wire.dump(report))
        await asyncio.sleep(0.1)
        await self.rounds()

    @property
    def runs(self) -> list[Run]:
        return list(self.service.ledger.open)


def test_a_cluster_has_its_minimum_of_nodes_before_any_run_comes(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "home")

    async def story() -> None:
        await desk.service.ledger.load()
        desk.service.clusters.add(DEV)
        await desk.rounds()
        await desk.rounds()
        (ahead,) = desk.runs
        assert (ahead.name, ahead.person, ahead.warms, ahead.state) == ("dev-warm-1", "anna", True, RunState.STARTING)
        assert [request.key for request in desk.cloud.started] == [ahead.attempts[0].key]
        await desk.ends(ahead)
        (waits,) = desk.runs
        assert waits.state is RunState.SUCCEEDED and waits.waiting_nodes == (ahead.attempts[0].key,)
        desk.clock.passed_s = 3600.0
        await desk.rounds()
        assert len(desk.runs) == len(desk.cloud.started) == 1, "it has its minimum"

    asyncio.run(story())


def test_a_cluster_without_a_minimum_starts_nothing(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "home")

    async def story() -> None:
        await desk.service.ledger.load()
        desk.service.clusters.add(Cluster("dev", "cloud", max_nodes=3))
        await desk.rounds()
        assert desk.runs == [] and desk.cloud.nodes == {}

    asyncio.run(story())


def test_after_one_that_failed_nothing_is_started_for_a_while(tmp_path: Path) -> None:
    """A machine that cannot start is not bought again and again."""
    desk = Desk(tmp_path / "home")

    async def story() -> None:
        await desk.service.ledger.load()
        desk.service.clusters.add(DEV)
        await desk.rounds()
        await desk.ends(desk.runs[0], Outcome.FAILED)
        desk.cloud.nodes.clear()
        for passed_s, started in ((0.0, 1), (AGAIN_S + 1, 1), (FAILED_S + 1, 2)):
            desk.clock.passed_s = passed_s
            await desk.rounds()
            assert len(desk.cloud.started) == started, f"after {passed_s:g} s"

    asyncio.run(story())
