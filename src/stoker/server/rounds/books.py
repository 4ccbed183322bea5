"""What rounds keep in memory: clusters, limits, durations for the queue, and the commands requested on nodes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from stoker.engine.money.spending import NONE, LimitFacts, exhausted, paid, period
from stoker.engine.queue.clusters import ClusterFacts, too_wide
from stoker.engine.queue.order import QueueFacts, decayed, node_seconds, worked_s
from stoker.errors import Conflict, JobInvalid, NotFound, Problem
from stoker.model import wire
from stoker.model.cause import Cause
from stoker.model.job.fields import nearest
from stoker.model.job.job import Job, Spot
from stoker.model.node import Cluster
from stoker.model.orders import Visit
from stoker.model.run.money import Limit, Period, Spell
from stoker.model.run.run import Run, RunState
from stoker.model.workspace.store import is_twin
from stoker.providers import Provider
from stoker.server.records.database import Database
from stoker.server.records.tables import ClusterTable, LimitTable
from stoker.server.sweeps.book import SweepBook


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
            raise NotFound(f"there is no cluster called `{name}`", hint=hint, cause=Cause.NO_SUCH_CLUSTER)
        return known[name]

    def add(self, cluster: Cluster) -> None:
        if any(one.name == cluster.name for one in self.all):
            hint = f"change it with `stoker cluster resize {cluster.name}`"
            raise Conflict(f"there is a cluster called `{cluster.name}` already", hint=hint, cause=Cause.NAME_IN_USE)
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
        reached = exhausted(runs, limits, now)
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
    if job.least_nodes > cluster.max_nodes:
        hint = f"`stoker cluster resize {cluster.name} --max {job.most_nodes}`"
        expected = f"at most {cluster.max_nodes}: {too_wide(job.least_nodes, cluster)} ({hint})"
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


class LimitBook:
    """Ended runs are read once, and only if there is a limit."""

    def __init__(self, database: Database, wake: Callable[[], None] = lambda: None) -> None:
        self._database = database
        self._table = LimitTable(database.engine)
        self._given: tuple[Limit, ...] | None = None  # None: not read yet
        self._past: dict[str, tuple[tuple[str, Spell], ...]] = {}  # by run id: whose, and what each node cost
        self.wake = wake

    def current(self, now: datetime) -> LimitFacts:
        """For the engine. Whatever lies before this month no longer matters."""
        given = self.given
        if not given:
            return NONE
        since = period(Period.MONTH, now)[0]
        past = (one for spells in self._past.values() for one in spells)
        return LimitFacts(given, tuple(one for one in past if one[1].until is None or one[1].until > since))

    @property
    def given(self) -> tuple[Limit, ...]:
        if self._given is None:
            self._read()
        return self._given or ()

    def over(self, person: str) -> tuple[Limit, ...]:
        """Those that runs of this person are under."""
        return tuple(one for one in self.given if one.person in ("", person))

    def save(self, limit: Limit) -> None:
        self._table.save(limit)
        self._read()
        self.wake()

    def remove(self, of: Period, person: str) -> bool:
        found = self._table.remove(of, person)
        self._read()
        self.wake()
        return found

    def closed(self, run: Run) -> None:
        """The run has ended and all its nodes are gone: later rounds do not include it."""
        if self._given:
            self._past[run.id] = _spells(run)

    def _read(self) -> None:
        before, self._given = self._given, tuple(self._table.all())
        if self._given and not before:
            over = (run for run in self._database.paid_runs() if not run.tended)
            self._past = {run.id: _spells(run) for run in over}


def _spells(run: Run) -> tuple[tuple[str, Spell], ...]:
    return tuple(paid(run))


_LOOKS_BACK = 500  # runs; earlier ones hardly count
_NEWEST = 5  # runs of an experiment, as in a forecast: older ones had another script


class QueueBook:
    """Read once, and then told of every run that is over."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._used: dict[str, float] | None = None  # usage by person at the time `_as_of`; None: not read yet
        self._as_of: datetime | None = None
        self._took: dict[str, deque[float]] = {}  # by experiment, newest last

    def current(self, now: datetime) -> QueueFacts:
        if self._used is None:
            self._read(now)
        used = {person: decayed(use, self._age_s(now)) for person, use in (self._used or {}).items()}
        return QueueFacts(used, {name: sorted(took)[len(took) // 2] for name, took in self._took.items() if took})

    def closed(self, run: Run) -> None:
        if self._used is not None and run.ended_at and self._as_of:
            self._count(run, self._as_of)

    def _read(self, now: datetime) -> None:
        self._used, self._as_of = {}, now
        for row in reversed(self._database.page(_LOOKS_BACK, "", "", "")):
            run = wire.from_plain(Run, row)
            if run.state.ended and run.ended_at:
                self._count(run, now)

    def _count(self, run: Run, as_of: datetime) -> None:
        """`_used` is as of one moment: what comes later counts for more."""
        ended = run.ended_at or as_of
        worked = worked_s(run, ended)
        if run.state is RunState.SUCCEEDED and worked:
            self._took.setdefault(run.experiment, deque(maxlen=_NEWEST)).append(worked)
        age_s = (as_of - ended).total_seconds()
        use = node_seconds(run, ended)
        weight = decayed(1.0, age_s) if age_s >= 0 else 1.0 / decayed(1.0, -age_s)
        assert self._used is not None
        self._used[run.person] = self._used.get(run.person, 0.0) + use * weight

    def _age_s(self, now: datetime) -> float:
        return (now - self._as_of).total_seconds() if self._as_of else 0.0


@dataclass(frozen=True, slots=True)
class Books:
    """What a round knows besides the open runs. `queue`: None decides without what ended runs tell."""

    limits: LimitBook
    clusters: ClusterBook
    sweeps: SweepBook
    queue: QueueBook | None = None


class Visits:
    """In memory: a visit ends with its server. `told` is called when agents must be informed of a change."""

    def __init__(self, told: Callable[[], None] = lambda: None) -> None:
        self.told = told
        self._open: dict[str, dict[str, Visit]] = {}  # by node key, by id

    def begin(self, node_key: str, visit: Visit) -> None:
        self._open.setdefault(node_key, {})[visit.id] = visit
        self.told()

    def of(self, node_key: str) -> tuple[Visit, ...]:
        return tuple(self._open.get(node_key, {}).values())

    def end(self, node_key: str, id: str) -> None:
        """Calling it twice is fine."""
        visits = self._open.get(node_key, {})
        if visits.pop(id, None):
            self.told()
        if not visits:
            self._open.pop(node_key, None)
