"""Nodes of an Azure Machine Learning workspace: a command job for each, which runs the agent on a node of a compute
cluster. Azure ML owns the nodes and the queue."""

from __future__ import annotations

import hashlib
import json
import secrets
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import cached_property
from typing import Any, ClassVar

from stoker.agent.pack import pack
from stoker.errors import BadInput, JobInvalid, NotFound, Problem, ProviderFailed, ProviderUnavailable
from stoker.model.node import Features, Need, NodeRequest, NodeSight, NodeState, Offer
from stoker.providers import KeptData, Setup
from stoker.providers.azure import AzureProvider
from stoker.providers.azure.account.account import read_account
from stoker.providers.azureml import bodies
from stoker.providers.azureml.workspace import FILE, NO_CLUSTER, NOT_SET_UP, LearningWorkspace, read_learning
from stoker.stores.access import Credential
from stoker.stores.sealing import seal

NODE = "stoker.providers.azureml.node"  # shipped with the agent
KEPT_S = 60.0  # what was read of a cluster
_OVER_S = 60.0  # for a cancelled job to be over


class AzureMlProvider:
    features: ClassVar[Features] = Features(
        notice_s=30.0, spot=True, market=True, keeps=True, look_every_s=3.0, patience_s=60.0, lease_s=432_000.0
    )

    def __init__(self, setup: Setup) -> None:
        self._home = setup.home
        self._mark = (setup.server or hashlib.sha256(str(setup.home.root).encode()).hexdigest())[:12]
        self._machines = AzureProvider(setup)  # for the prices of its sizes
        self._starting = threading.Lock()
        self._known: dict[str, tuple[float, bodies.ClusterSight | None]] = {}
        self._environments: dict[str, tuple[float, str]] = {}

    def offers(self, need: Need) -> list[Offer]:
        """One: the size of the cluster that the need is for."""
        if not (self._home.root / FILE).exists():
            return [Offer("azureml", need.size or "cluster", "no workspace", Decimal(0), unready=NOT_SET_UP)]
        if need.pool is None and not self._account.compute:
            return [Offer("azureml", need.size or "cluster", "no cluster", Decimal(0), unready=NO_CLUSTER)]
        if need.environment:
            self._environment(need.environment)
        name, found = self._cluster_of(need)
        size, low = (found.size, found.low_priority) if found else (need.size, need.spot)
        if not size:
            hint = f"create it: stoker cluster create {name or 'NAME'} --provider azureml --size SIZE --max 4"
            raise BadInput(f"the workspace has no compute cluster `{name}`", hint=hint)
        if need.spot != low or (need.size and found and need.size.lower() != size.lower()):
            return []
        region = found.region if found else self._workspace.region
        priced = self._machines.offers(Need(spot=low, size=size, region=region, currency=need.currency))
        fitting = [one for one in priced if one.size.lower() == size.lower() and one.place == region]
        return [replace(one, provider="azureml", place=region, again="", gang="") for one in fitting[:1]]

    def start(self, request: NodeRequest) -> None:
        """A job has its name from the key, and a job of this name that exists is left as it is."""
        name = self._job_name(request.key)
        if request.offer is None:
            raise ProviderFailed(f"no cluster size given for {request.key}")
        with self._starting:
            if self._workspace.job(name):
                return
            cluster = self._made_cluster(request, request.offer)
            key, folder = secrets.token_hex(32), f"stoker/{name}"
            told = json.dumps({"variables": dict(request.variables), "words": _words(request)})
            self._workspace.write(f"{folder}/agent.pyz", pack(self._home.agents, (NODE,)).read_bytes())
            self._workspace.write(f"{folder}/sealed", seal(key, told, name))
            kept = request.need.environment if request.need else ""
            environment = self._environment(kept) if kept else self._workspace.environment(self._account.image)
            usd = request.offer.usd_per_hour
            tags = bodies.tags(self._mark, request, usd, _end_of(request.lease_s))
            body = bodies.job(name, request, self._workspace.compute_id(cluster), environment, folder, key, tags)
            self._workspace.submit(name, body)

    def look(self) -> list[NodeSight]:
        """A request for each hundred jobs; none while nothing is set up."""
        if not (self._home.root / FILE).exists():
            return []
        return [sight for one in self._workspace.jobs(bodies.TAG) if (sight := self._sight(one))]

    def stop(self, key: str) -> None:
        """Cancelled, and no longer marked as ours: the job stays in the history of the workspace."""
        if not (self._home.root / FILE).exists():
            return
        name = self._job_name(key)
        if (job := self._workspace.job(name)) is None:
            self._workspace.remove(f"stoker/{name}/")  # of a start that ended before its job was submitted
            return
        deadline = time.monotonic() + _OVER_S
        if job["properties"]["status"] not in bodies.OVER:
            self._workspace.cancel(name)
        while (job := self._workspace.job(name)) and job["properties"]["status"] not in bodies.ENDED:
            if time.monotonic() > deadline:
                raise ProviderUnavailable(f"job {name} was cancelled, and has not ended yet")
            time.sleep(0.5)
        if job and bodies.TAG in job["properties"]["tags"]:
            self._workspace.remove(f"stoker/{name}/")
            self._workspace.relabel(job, bodies.released(job["properties"]["tags"]))

    def renew(self, key: str, lease_s: float) -> None:
        job = self._workspace.job(self._job_name(key))
        if job and job["properties"]["status"] not in bodies.ENDED:
            self._workspace.relabel(job, {**job["properties"]["tags"], bodies.LEASE: _end_of(lease_s)})

    def data(self, name: str) -> KeptData:
        store, path = self._workspace.data(name)
        token = store.reading
        credential = Credential("sas", {"token": token}) if token else None
        return KeptData(f"{store.url}/{path}", store.name.lower().replace("_", "-"), store.url, credential)

    def _environment(self, name: str) -> str:
        """Its id in the workspace. Raises JobInvalid."""
        read_at, found = self._environments.get(name, (float("-inf"), ""))
        if time.monotonic() - read_at > KEPT_S:
            try:
                found = self._workspace.environment_named(name)
            except NotFound as error:
                expected = "an environment of the workspace: see `az ml environment list`"
                raise JobInvalid([Problem("environment.kept", f"`azureml:{name}`", expected)]) from error
            self._environments[name] = time.monotonic(), found
        return found

    # Clusters

    def _cluster_of(self, need: Need) -> tuple[str, bodies.ClusterSight | None]:
        """Its name, and what the workspace knows of it."""
        given = bodies.settings(need.pool)
        name = given.get("compute") or (need.pool.name if need.pool else self._account.compute)
        read_at, found = self._known.get(name, (float("-inf"), None))
        if time.monotonic() - read_at > KEPT_S:
            found = self._workspace.cluster(name)
            self._known[name] = time.monotonic(), found
        return name, found

    def _made_cluster(self, request: NodeRequest, offer: Offer) -> str:
        """The name of its cluster, which is made or resized where that is ours to do."""
        need = request.need or Need(pool=request.pool)
        name, found = self._cluster_of(replace(need, pool=request.pool or need.pool))
        pool = request.pool or need.pool
        if pool is None or bodies.settings(pool).get("compute"):
            return name
        if found is None or (found.most, found.idle_s) != (pool.most_nodes, pool.idle_s):
            self._workspace.make_cluster(name, bodies.cluster(pool, offer, found.region if found else offer.place))
            self._known.pop(name, None)
        return name

    # Looking

    def _sight(self, job: Mapping[str, Any]) -> NodeSight | None:
        told, status = bodies.read_tags(job), job["properties"]["status"]
        if told is None:
            return None
        state = bodies.STATES.get(status, NodeState.STARTING)
        if state is NodeState.UP and not told.began:
            self._workspace.relabel(job, {**job["properties"]["tags"], bodies.BEGAN: "yes"})
        sight = NodeSight(
            key=told.key,
            state=state,
            resources=(f"job/{job['name']}",),
            server="" if told.server == self._mark else told.server,
            usd_per_hour=told.usd if state is NodeState.UP else Decimal(0),
            lease_until=told.lease,
            expired=told.lease is not None and told.lease < datetime.now(UTC),
        )
        if state is NodeState.STARTING and told.began:
            return replace(sight, state=NodeState.GONE, taken=True, reason="its node was preempted (Azure ML)")
        if state is NodeState.STARTING:
            return replace(sight, waits=self._why(job))
        return sight if state is NodeState.UP else self._ended(sight, job["name"], status)

    def _why(self, job: Mapping[str, Any]) -> str:
        """With what its cluster says of its nodes, such as a quota."""
        name = str(job["properties"]["computeId"]).rsplit("/", 1)[-1]
        read_at, found = self._known.get(name, (float("-inf"), None))
        if time.monotonic() - read_at > KEPT_S / 4:
            found = self._workspace.cluster(name)
            self._known[name] = time.monotonic(), found
        error = f": {found.error}" if found and found.error else ""
        return f"job {job['name']} is {job['properties']['status']} on {name}{error}"

    def _ended(self, sight: NodeSight, name: str, status: str) -> NodeSight:
        if status == "Failed":
            message = self._workspace.error_of(name)
            taken = "preempt" in message.replace("-", "").lower()
            return replace(sight, reason=message or "job failed", taken=taken, still=True)
        return replace(sight, reason=f"its job is {status}", still=True)

    # Names

    def _job_name(self, key: str) -> str:
        return bodies.job_name(self._mark, key)

    @cached_property
    def _account(self) -> Any:
        return read_learning(self._home.root / FILE)

    @cached_property
    def _workspace(self) -> LearningWorkspace:
        return LearningWorkspace(read_account(self._home.root / "azure.json"), self._account.workspace)


def _words(request: NodeRequest) -> list[str]:
    return ["--store", request.store, "--orders", request.orders, "--cloud", NODE]


def _end_of(lease_s: float | None) -> str:
    return (datetime.now(UTC) + timedelta(seconds=lease_s or AzureMlProvider.features.lease_s)).isoformat()
