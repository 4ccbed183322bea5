"""Keeps the minimum of each cluster: nodes that are missing are started with a run of its owner, whose script does
nothing. It has a lease, limits, a receipt and a reason for waiting, as any run."""

from __future__ import annotations

import asyncio
import logging

from stoker.engine.queue.clusters import lacking
from stoker.errors import NotFound, StokerError
from stoker.model.job.job import Environment, Job, Packages, Priority
from stoker.model.job.values import NodeRange
from stoker.model.node import Cluster
from stoker.model.run.run import RunState, Submission
from stoker.model.snapshot import Snapshot
from stoker.server.api.runs import accept
from stoker.server.rounds.outside import call
from stoker.server.service import Service

log = logging.getLogger(__name__)

EVERY_S = 5.0
AGAIN_S = 60.0  # between two runs for one cluster
FAILED_S = 600.0  # the same, after one that failed, was cancelled or was refused


class Warming:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._begun: dict[str, tuple[float, str]] = {}  # by cluster: when it was last tried, and the name of the run

    async def run(self) -> None:
        while True:
            try:
                await self.round()
            except Exception as error:
                log.warning("the minimum of clusters could not be kept: %s", error, exc_info=error)
            await asyncio.sleep(EVERY_S)

    async def round(self) -> None:
        service = self._service
        if not any(one.min_nodes for one in await call(lambda: service.clusters.all)):
            return
        now = service.clock.now()
        facts = service.clusters.facts(service.ledger.open, service.limits.current(now), now)
        for name, nodes in lacking(service.ledger.open, facts).items():
            if await self._may_try(name):
                await self._start(facts.known[name], nodes)

    async def _may_try(self, name: str) -> bool:
        at, last = self._begun.get(name, (float("-inf"), ""))
        waits_s = AGAIN_S if last and not await self._has_failed(last) else FAILED_S
        return self._service.clock.steady() - at >= waits_s

    async def _has_failed(self, name: str) -> bool:
        try:
            return (await self._service.ledger.find(name)).state in (RunState.FAILED, RunState.CANCELLED)
        except NotFound:
            return False

    async def _start(self, cluster: Cluster, nodes: int) -> None:
        steady = self._service.clock.steady()
        self._begun[cluster.name] = steady, ""
        snapshot, job = Snapshot(()), warming_job(cluster.name, nodes)
        try:
            await call(self._service.shelves.workspace.register, snapshot)
            key = f"warm-{cluster.name}-{self._service.clock.now().timestamp():.6f}"
            submission = Submission(key, job, snapshot.id, "python3", person=cluster.owner)
            run = await accept(self._service, submission, warms=True)
        except StokerError as error:
            log.warning("no node is kept ready in cluster %s: %s", cluster.name, error.message)
            return
        self._begun[cluster.name] = steady, run.name
        log.info("%s starts %d nodes of cluster %s", run.name, nodes, cluster.name)


def warming_job(cluster: str, nodes: int) -> Job:
    """Several nodes are of one gang, so that the next gang can have them; those that are available do not wait for the
    others."""
    wanted = nodes if nodes == 1 else NodeRange(1, nodes)
    nothing = Environment(packages=Packages.NONE)
    return Job(name=f"{cluster}-warm", run="true", on=cluster, nodes=wanted, priority=Priority.LOW, environment=nothing)
