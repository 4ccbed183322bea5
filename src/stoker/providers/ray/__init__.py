"""Nodes of a Ray cluster: a Ray job for each attempt, whose driver has an agent started on each of its nodes. Ray owns
the nodes, and its autoscaler makes them."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit

from stoker.agent.pack import pack
from stoker.errors import NotSetUp, ProviderFailed, ProviderUnavailable
from stoker.model.node import Features, Need, NodeRequest, NodeSight, NodeState, Offer, Pool
from stoker.providers import Setup, surroundings
from stoker.providers.allocations import Allocation, Allocations, GangGathering
from stoker.providers.ray import wanted
from stoker.providers.ray.jobs import RayJob, RayJobs
from stoker.stores.access import Access

UNSET = "no Ray cluster is known: RAY_ADDRESS is not set"
_HINT = "export RAY_ADDRESS=http://HOST:8265, the address of its dashboard, and then `stoker server stop`"
_OVER_S = 20.0  # for a job that was stopped to be over
_STATES = {"starting": NodeState.STARTING, "up": NodeState.UP}


class RayProvider:
    # Ray gives no notice of its own. Folders are those that all nodes of the cluster share.
    features: ClassVar[Features] = Features(carries_folders=True, own_queue=True, look_every_s=2.0)

    def __init__(self, setup: Setup) -> None:
        self._home = setup.home
        self._mark = (setup.server or hashlib.sha256(str(setup.home.root).encode()).hexdigest())[:12]
        self._records = Allocations(setup.home.root / "ray")
        self._gathering = GangGathering(self._records)
        self._clusters: dict[str, RayJobs] = {}  # by address
        self._agent: Path | None = None

    def offers(self, need: Need) -> list[Offer]:
        there = self._place(need.pool)
        if not there.address:
            return [Offer("ray", "node", "no cluster", Decimal(0), unready=UNSET)]
        if need.size or need.region or need.spot:
            return []
        jobs = self._jobs(there.address)
        jobs.check()
        cluster = jobs.cluster()
        wanted.check(cluster, need)
        host = urlsplit(there.address).netloc.rpartition("@")[2]
        slots = None if cluster.grows else wanted.fitting(cluster, wanted.bundle(need))
        return [Offer("ray", "node", host, Decimal(0), slots)]

    def start(self, request: NodeRequest) -> None:
        self._gathering.start(request, self._submit)

    def look(self) -> list[NodeSight]:
        """One request to each cluster for all of its jobs; none while there are none. A cluster that does not answer
        says nothing about the nodes of others."""
        known = self._records.all()
        seen: dict[str, dict[str, RayJob] | ProviderFailed] = {}
        for where in {one.where for one in known}:
            try:
                seen[where] = {job.id: job for job in self._jobs(where).all()}
            except ProviderFailed as error:
                seen[where] = error
        away = [error for error in seen.values() if isinstance(error, ProviderFailed)]
        if away and len(away) == len(seen):
            raise away[0]
        return [sight for one in known for sight in self._seen(one, seen[one.where])]

    def stop(self, key: str) -> None:
        self._gathering.stop(key, self._stop_one, self._stop_all)

    def carried(self, key: str, access: Access) -> Access:  # noqa: ARG002  # a Protocol fixes the signature
        """A folder is one that all nodes share, under the same path: its driver looks whether it is there."""
        return access

    # Starting

    def _submit(self, requests: list[NodeRequest]) -> None:
        """Ray has keys of its own: a job whose id is there already is not made a second time."""
        first = requests[0]
        need = first.need or Need(pool=first.pool)
        there = self._place(need.pool or first.pool)
        if not there.address:
            raise NotSetUp(UNSET, hint=_HINT)
        jobs, id = self._jobs(there.address), f"stoker-{self._mark[:6]}-{first.key}"
        jobs.check()
        keys = tuple(request.key for request in requests)
        one = self._records.of(first.key) or Allocation(first.key, id, keys, where=there.address)
        self._records.keep(one)
        if jobs.one(id) is None:
            given = wanted.given(id, self._mark, _stops(id), wanted.bundle(need), requests)
            jobs.put(_package(id), wanted.packed(given, self._packed()))
            labels = {name: value for name, value in first.labels.items() if value}
            jobs.submit(id, wanted.entrypoint(there.python, _package(id)), {**labels, "stoker": self._mark})
        self._records.keep(replace(one, job=id))

    # Looking

    def _seen(self, one: Allocation, jobs: dict[str, RayJob] | ProviderFailed) -> Iterable[NodeSight]:
        if isinstance(jobs, ProviderFailed):
            return [NodeSight(key, NodeState.UP, jobs.message) for key in one.keys if key not in one.stopped]
        return self._sights(one, jobs.get(one.name))

    def _sights(self, one: Allocation, job: RayJob | None) -> list[NodeSight]:
        one = self._noted(one, job)
        if one.is_over and not one.ended:
            return [NodeSight(key, NodeState.GONE, "it is being released") for key in one.keys]
        if one.ended:
            return [NodeSight(key, NodeState.GONE, one.ended, trouble=one.trouble) for key in one.keys]
        if job is None:
            return [NodeSight(key, NodeState.GONE, "it was not submitted", unfinished=True) for key in one.keys]
        return [sight for key in one.keys if (sight := _sight(one, job, key))]

    def _noted(self, one: Allocation, job: RayJob | None) -> Allocation:
        """How its job ended is written down: a cluster that starts anew knows nothing of earlier jobs."""
        if one.ended or (job is None and not one.job):
            return one
        if job is None:
            words = f"the Ray cluster at {one.where} has no job {one.job} any more: it was restarted"
            return self._records.keep(replace(one, ended=words))
        if not one.job:
            one = self._records.keep(replace(one, job=job.id))
        if not job.is_over:
            return one
        lost = [node for node in job.nodes.values() if node.state == "gone"]
        words = "; ".join(dict.fromkeys(node.words for node in lost)) or job.message.strip()[-300:]
        trouble = next((node.code for node in lost if node.code), "")
        ended = f"Ray job {job.id} ended as {job.status}: {words}"
        return self._records.keep(replace(one, ended=ended, trouble=trouble))

    # Stopping

    def _stop_one(self, one: Allocation, key: str) -> None:
        """The other nodes of its job stay."""
        if one.ended:
            return
        jobs = self._jobs(one.where)
        jobs.put(_stops(one.name) + key, b"1")
        until = time.monotonic() + _OVER_S
        while (job := jobs.one(one.name)) and not job.is_over and _is_held(job, key):
            if time.monotonic() > until:
                raise ProviderUnavailable(f"node {key} of Ray job {one.name} was stopped, and has not ended yet")
            time.sleep(0.1)

    def _stop_all(self, one: Allocation) -> None:
        jobs = self._jobs(one.where)
        jobs.clear(_package(one.name))
        until = time.monotonic() + _OVER_S
        while (job := jobs.one(one.name)) and not job.is_over:
            if time.monotonic() > until:
                raise ProviderUnavailable(f"Ray job {one.name} was stopped, and has not ended yet")
            jobs.stop(one.name)
            time.sleep(0.1)
        if job:
            jobs.delete(one.name)
        self._records.forget(one.key)

    # What is known of clusters

    def _place(self, pool: Pool | None) -> wanted.RayPlace:
        return wanted.place(pool.settings if pool else {}, surroundings({}).get("RAY_ADDRESS", ""))

    def _jobs(self, address: str) -> RayJobs:
        return self._clusters.setdefault(address, RayJobs(address))

    def _packed(self) -> Path:
        if self._agent is None or not self._agent.exists():
            self._agent = pack(self._home.agents)
        return self._agent


def _package(id: str) -> str:
    return f"{id}.zip"


def _stops(id: str) -> str:
    return f"{id}.stop-"


def _is_held(job: RayJob, key: str) -> bool:
    return key not in job.nodes or job.nodes[key].state in _STATES


def _sight(one: Allocation, job: RayJob, key: str) -> NodeSight | None:
    """None: it was stopped, and nothing of it is left."""
    if not (node := job.nodes.get(key)):
        return NodeSight(key, NodeState.STARTING)
    if node.state in _STATES:
        return NodeSight(key, _STATES[node.state], waits=f"{node.words} (Ray job {job.id})" if node.words else "")
    if key in one.stopped:
        return None
    return NodeSight(key, NodeState.GONE, node.words or f"its agent has ended (Ray job {job.id})", trouble=node.code)
