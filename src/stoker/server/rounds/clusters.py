"""The clusters of this server: kept at hand for every round, saved before they are seen."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from datetime import datetime

from stoker.engine.clusters import ClusterFacts, too_wide
from stoker.engine.money.limits import LimitFacts, used
from stoker.errors import Conflict, JobInvalid, NotFound, Problem
from stoker.model.cluster import Cluster
from stoker.model.job.fields import nearest
from stoker.model.job.job import Job, Spot
from stoker.model.run.run import Run
from stoker.model.workspace.store import is_twin
from stoker.providers import Provider
from stoker.server.records.database import Database
from stoker.server.records.tables import ClusterTable


class ClusterBook:
    def __init__(self, database: Database, providers: Mapping[str, Provider]) -> None:
        self._table = ClusterTable(database.engine)
        self._providers = providers
        self._known: dict[str, Cluster] | None = None  # None: not read yet
        self.wake: Callable[[], None] = lambda: None

    @property
    def all(self) -> list[Cluster]:
        """By name."""
        if self._known is None:
            self._known = {one.name: one for one in self._table.all()}
        return list(self._known.values())

    def named(self, name: str) -> Cluster:
        known = {one.name: one for one in self.all}
        if name not in known:
            near = nearest(name, known)
            hint = f"did you mean `{near}`?" if near else "create one with `stoker cluster create`"
            raise NotFound(f"there is no cluster called `{name}`", hint=hint)
        return known[name]

    def add(self, cluster: Cluster) -> None:
        if any(one.name == cluster.name for one in self.all):
            hint = f"change it with `stoker cluster resize {cluster.name}`"
            raise Conflict(f"there is a cluster called `{cluster.name}` already", hint=hint)
        self.save(cluster)

    def save(self, cluster: Cluster) -> None:
        self._table.save(cluster)
        self._known = None
        self.wake()

    def remove(self, name: str) -> None:
        self._table.remove(name)
        self._known = None
        self.wake()

    def facts(self, runs: Collection[Run], limits: LimitFacts, now: datetime) -> ClusterFacts:
        """For the engine."""
        known = {one.name: one for one in self.all}
        if not known:
            return ClusterFacts()
        reached = {one.person for one in limits.given if used(one, runs, limits.past, now) >= one.usd}
        spent = {one.name for one in known.values() if reached & {"", one.owner}}
        return ClusterFacts(known, {name for name, one in self._providers.items() if one.features.warm}, spent)

    def placed(self, job: Job) -> tuple[Job, Cluster | None]:
        """The job as its cluster runs it: on the provider, in the size and place of the cluster. Unchanged, and None,
        for a job on a provider. Raises JobInvalid."""
        known = {one.name: one for one in self.all}
        if job.on in self._providers or is_twin(job.on):
            return job, None
        if job.on not in known:
            names = [*self._providers, *known]
            expected = "a provider or cluster: " + ", ".join(f"`{name}`" for name in names)
            raise JobInvalid([Problem("on", f"`{job.on}`", expected, nearest(job.on, names))])
        cluster = known[job.on]
        if problems := _problems(job, cluster):
            raise JobInvalid(problems)
        spot = Spot() if cluster.spot and job.spot is None else job.spot
        size, region = cluster.size or job.size, cluster.region or job.region
        return replace(job, on=cluster.provider, size=size or None, region=region or None, spot=spot), cluster


def _problems(job: Job, cluster: Cluster) -> list[Problem]:
    found: list[Problem] = []
    if job.nodes > cluster.max_nodes:
        hint = f"`stoker cluster resize {cluster.name} --max {job.nodes}`"
        expected = f"at most {cluster.max_nodes}: {too_wide(job.nodes, cluster)} ({hint})"
        found.append(Problem("nodes", f"`{job.nodes}`", expected))
    for name in ("size", "region"):
        given, has = getattr(job, name), getattr(cluster, name)
        if given and has and given != has:
            found.append(Problem(name, f"`{given}`", f"`{has}`, which cluster `{cluster.name}` has, or none"))
    if job.spot is False and cluster.spot:
        found.append(Problem("spot", "`false`", f"`true`: cluster `{cluster.name}` has spot machines"))
    if job.spot and not cluster.spot:
        found.append(Problem("spot", "`true`", f"`false`: cluster `{cluster.name}` has no spot machines"))
    return found
