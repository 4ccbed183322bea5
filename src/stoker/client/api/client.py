"""The client: everything a program can request from a server."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import ROUND_DOWN, Decimal
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from stoker.client.api.connection import Connection
from stoker.client.api.handle import RunHandle
from stoker.client.local import launch
from stoker.client.settings import ClientSettings, from_environment
from stoker.client.submit import sending
from stoker.client.submit.sending import Again, Notice, Progress, RunOptions
from stoker.errors import NotFound
from stoker.model import wire
from stoker.model.cause import Cause
from stoker.model.job.fields import nearest
from stoker.model.job.job import THIS_COMPUTER, Job
from stoker.model.orders import Terminal
from stoker.model.run.money import Costs
from stoker.model.run.run import PruneRule, Run, RunState, Turn
from stoker.model.snapshot import Snapshot
from stoker.model.workspace.store import is_twin, twin_of

if TYPE_CHECKING:
    from stoker.client.api.resources import Clusters, Limits
    from stoker.client.data.datasets import Agree, Datasets
    from stoker.client.report.comparison import Difference
    from stoker.client.software.environments import Environments
    from stoker.client.submit.plan import Plan
    from stoker.client.sweeps.results import Results
    from stoker.client.sweeps.sweeps import SweepHandle
    from stoker.model.run.money import Costs
    from stoker.model.run.receipt import Forecast
    from stoker.model.run.run import Sizes, Spared
    from stoker.model.run.sweep import SweepState

NEWEST = "last"
_PAGE = 200
_CENT = Decimal("0.01")


class Client:
    """A connection to a server: submits and finds runs. `Client.connect()` uses this computer's server, and starts it
    if necessary."""

    def __init__(self, settings: ClientSettings, connection: Connection) -> None:
        self.settings = settings
        self.connection = connection

    @classmethod
    def connect(cls, settings: ClientSettings | None = None, *, start: bool = True) -> Client:
        """Settings default to the environment's. Starts this computer's server if necessary, unless `start` is off."""
        given = settings or from_environment()
        return cls(given, launch.connect(given, start=start))

    @property
    def datasets(self) -> Datasets:
        """Versioned datasets in stores."""
        from stoker.client.data.datasets import Datasets  # not needed to submit or follow

        return Datasets(self.connection, self.settings)

    @property
    def environments(self) -> Environments:
        """Environments that were built, here or by nodes."""
        from stoker.client.software.environments import Environments  # not needed to submit or follow

        return Environments(self.connection, self.settings)

    @property
    def clusters(self) -> Clusters:
        """Named pools of nodes."""
        from stoker.client.api.resources import Clusters  # not needed to submit to this computer

        return Clusters(self.connection)

    @property
    def limits(self) -> Limits:
        """What people may spend in a day or a month, for administrators."""
        from stoker.client.api.resources import Limits  # not needed to submit or follow

        return Limits(self.connection)

    def plan(self, job: Job, folder: Path | str = ".") -> Plan:
        """What `submit` would do. Relative paths of the job are relative to `folder`."""
        from stoker.client.submit.plan import plan  # not needed to submit

        return plan(job, Path(folder), self.settings, self.connection)

    def forecast(self, job: Job, currency: str = "USD", *, hours: float | None = None, both: bool = False) -> Forecast:
        """The expected time and cost of the job for each offer that fits it, and the cheapest one. `hours` is the
        amount of work, instead of an estimate from earlier runs; `both`: spot and on demand if the job allows it."""
        from stoker.client.api.resources import forecast  # not needed to submit

        return forecast(self.connection, job, currency, hours, both=both)

    def costs(self, by: str = "experiment", since: datetime | timedelta | None = None, experiment: str = "") -> Costs:
        """What runs have cost, summed by `experiment`, `person`, `day`, `cluster` or `run`. `since`: or a duration."""
        from stoker.client.api.resources import costs  # not needed to submit or follow

        return costs(self.connection, by, since, experiment)

    def submit(
        self,
        job: Job,
        folder: Path | str = ".",
        *,
        name: str = "",
        progress: Progress | None = None,
        terminal: Terminal | None = None,
        say: Callable[[str], None] = lambda _: None,
        notice: Notice | None = None,
        agree: Agree | None = None,
    ) -> RunHandle:
        """Submits a run. `name` overrides `<job name>-<n>`. If the job is on a twin, the twin is started if
        necessary; `say` receives progress messages. `terminal` is a terminal for the script, on this
        computer only: the caller must attach it. `notice` receives the files that are not uploaded because they contain
        secrets; without it they are Python warnings. `agree` is called before local data is uploaded to the store for
        machines that cannot read it; without it, such a job is refused."""
        store, given = self._stage(job, say), Path(folder)
        datasets = self._put(job, given, store, agree) if job.data and agree else {}
        return self._handle(
            sending.submit(
                job,
                given,
                self.settings,
                self.connection,
                RunOptions(name, store, terminal, datasets),
                progress=progress,
                notice=notice or _warn,
            )
        )

    def sweep(
        self,
        job: Job,
        folder: Path | str = ".",
        *,
        name: str = "",
        progress: Progress | None = None,
        say: Callable[[str], None] = lambda _: None,
        notice: Notice | None = None,
        agree: Agree | None = None,
    ) -> SweepHandle:
        """Submits all trials of a job with a `matrix`: with one upload, and all of them or none. `name` overrides
        `<job name>-s<n>`. The other arguments are those of `submit`."""
        from stoker.client.sweeps.sweeps import SweepHandle  # most jobs are one run

        store, given = self._stage(job, say), Path(folder)
        datasets = self._put(job, given, store, agree) if job.data and agree else {}
        options = RunOptions(name, store, None, datasets)
        state = sending.submit_sweep(
            job, given, self.settings, self.connection, options, progress=progress, notice=notice or _warn
        )
        return SweepHandle(state, self.connection, self.settings)

    def sweeps(self) -> list[SweepState]:
        """Newest first."""
        from stoker.model.run.sweep import SweepState  # most jobs are one run

        return [wire.from_plain(SweepState, row) for row in self.connection.get("/v1/sweeps")["sweeps"]]

    def find_sweep(self, name: str = NEWEST) -> SweepHandle:
        """The sweep of this name. `last` is the newest of all, an experiment's name its newest one."""
        from stoker.client.sweeps.sweeps import SweepHandle  # most jobs are one run

        return SweepHandle.found(name, self.connection, self.settings)

    def results(self, name: str = NEWEST, *, metric: str = "", by: Sequence[str] = ()) -> Results:
        """The runs of an experiment or a sweep with their values and metrics, and groups of them with mean and spread;
        `frame()` makes them a pandas frame. `last` is the newest sweep. `metric` is what they are compared by, with `-`
        in front if less is better; `by` are the parameters in which groups differ, by default all but seeds."""
        from stoker.client.sweeps.results import found  # not needed to submit or follow

        return found(self.connection, self.find_sweep().name if name == NEWEST else name, metric, by)

    def rerun(
        self,
        run: str,
        job: Job | None = None,
        *,
        from_checkpoint: bool = False,
        exact_environment: bool = False,
        name: str = "",
    ) -> RunHandle:
        """Starts a new run with the code, software and data of an old one, and with its job unless another is given;
        secrets come from the environment. With `from_checkpoint` it starts from the old run's last checkpoint. With
        `exact_environment` its node gets the packages and the Python that the old run's node had."""
        old = self.run(run).facts
        again = Again(job or sending.job_again(old), from_checkpoint)
        if exact_environment:
            from stoker.client.submit.sending import exactly  # not needed for other reruns

            old, again = exactly(old, again, self.connection, self.settings)
        return self._again(old, again, name)

    def resume(self, run: str, job: Job | None = None, *, name: str = "") -> RunHandle:
        """Continues a run that failed or was cancelled from its last checkpoint, as a new run that is named after it.
        `job` is the job to run; None: `job_to_resume`. A paused run itself resumes, with the job's budget. Raises
        Conflict if the run is active or has succeeded, and NotFound if it has no checkpoint."""
        old = self.run(run)
        if old.state is RunState.PAUSED:
            return old.set_budget(job.budget if job else old.facts.budget)
        return self._again(old.facts, Again(job or self.job_to_resume(old), resumes=True), name)

    def job_to_resume(self, old: RunHandle) -> Job:
        """The job of a run with what is left of its budget."""
        job = sending.job_again(old.facts)
        if old.facts.budget is None:
            return replace(job, budget=None)
        left = old.facts.budget - old.budget().spent_usd
        return replace(job, budget=max(left.quantize(_CENT, ROUND_DOWN), _CENT))

    def runs(self, limit: int = 50, experiment: str = "", state: str = "", *, folded: bool = False) -> list[Run]:
        """Newest first. `state` may be one of RunState, or `active`. `folded`: without trials of sweeps that wait."""
        found: list[Run] = []
        before: str | None = ""
        while before is not None and len(found) < limit:
            count = min(limit - len(found), _PAGE)
            query = {"limit": count, "before": before or None, "experiment": experiment or None, "state": state or None}
            query |= {"folded": "true"} if folded else {}
            page = self.connection.get("/v1/runs", query)
            found += [wire.from_plain(Run, row) for row in page["runs"]]
            before = page["next"]
        return found

    def run(self, name: str) -> RunHandle:
        """The run of this name. `last` is the newest of all, an experiment's name the newest of its runs."""
        if name != NEWEST:
            try:
                return self._handle(wire.from_plain(Run, self.connection.get(f"/v1/runs/{quote(name, safe='')}")))
            except NotFound:
                pass
        newest = self.runs(limit=1, experiment="" if name == NEWEST else name)
        if newest:
            return self._handle(newest[0]).refresh()  # a list omits long fields
        raise self._unknown(name)

    def remove(self, *names: str) -> Mapping[str, str]:
        """Removes ended runs and everything that is stored of them: all of them, or none if one cannot be removed.
        Downloaded outputs are kept. Returns the runs with files left in a store, and why: the server keeps trying."""
        from stoker.client.api.resources import remove  # not needed to submit or follow

        return remove(self.connection, [self.run(name).name for name in names])

    def queue(self) -> list[Turn]:
        """The waiting runs, place by place in starting order."""
        return [wire.from_plain(Turn, row) for row in self.connection.get("/v1/queue", {})["turns"]]

    def sizes(self, *names: str) -> Sizes:
        """The size of runs in their stores and on the server's computer."""
        from stoker.client.api.resources import sizes  # not needed to submit or follow

        return sizes(self.connection, names)

    def prunable(
        self, older_than: timedelta, *, keep_best: bool = False, experiment: str = ""
    ) -> tuple[list[Run], list[Spared]]:
        """Which runs ended longer ago than this, and which of those are kept: always the newest of each experiment,
        with `keep_best` also its best. Removes nothing: pass their names to `remove`."""
        from stoker.client.api.resources import prunable  # not needed to submit or follow

        return prunable(self.connection, PruneRule(older_than.total_seconds(), keep_best, experiment))

    def compare(self, first: str, second: str) -> Difference:
        """What differs between two runs."""
        from stoker.client.report.comparison import compare  # not needed to submit or follow

        one, other = self.run(first).facts, self.run(second).facts
        return compare(one, other, self._code(one), self._code(other))

    def _stage(self, job: Job, say: Callable[[str], None]) -> str:
        """The store for a run; empty: the workspace's."""
        return self.stage(self._provider(job), say)

    def stage(self, provider: str, say: Callable[[str], None] = lambda _: None) -> str:
        """Starts the twin if this provider is one. Returns the store for its runs; empty: the workspace's."""
        if not is_twin(provider):
            return ""
        from stoker.client.local import rehearsal  # needed only for a rehearsal

        return rehearsal.stage(provider, self.settings, self.connection, say)

    def _provider(self, job: Job) -> str:
        """That of its cluster, if it names one. For a local run the server is not asked."""
        if job.on == THIS_COMPUTER or is_twin(job.on):
            return job.on
        return next((one.cluster.provider for one in self.clusters.all() if one.cluster.name == job.on), job.on)

    def _put(self, job: Job, folder: Path, store: str, agree: Agree) -> dict[str, str]:
        """The datasets, by name of the input, that local data was uploaded as."""
        from stoker.client.data.datasets import moves  # needed only for local data

        datasets = self.datasets
        found = moves(job, folder, self.connection, datasets)
        if not found:
            return {}
        progress = agree(found)
        return {
            one.use.name: datasets.put(one.use.where, one.dataset, store=store, progress=progress).version.ref
            for one in found
        }

    def _again(self, old: Run, again: Again, name: str) -> RunHandle:
        store = self._stage(again.job, lambda _: None)
        return self._handle(sending.submit_again(old, again, self.settings, self.connection, name=name, store=store))

    def _handle(self, facts: Run) -> RunHandle:
        return RunHandle(facts, self.connection, self.settings)

    def _code(self, run: Run) -> Snapshot:
        return wire.from_plain(Snapshot, self.connection.get(f"/v1/snapshots/{quote(run.snapshot, safe='')}"))

    def _unknown(self, name: str) -> NotFound:
        runs = self.runs(limit=_PAGE)
        if not runs:
            return NotFound("no runs yet", hint="start one with `stoker run`", cause=Cause.NO_RUNS_YET)
        near = nearest(name, [run.name for run in runs] + [run.experiment for run in runs])
        return NotFound(
            f"run `{name}` not found",
            hint=f"did you mean `{near}`?" if near else "list them: `stoker ps`",
            cause=Cause.NO_SUCH_RUN,
        )


def _warn(text: str) -> None:
    import warnings  # few submissions have warnings

    warnings.warn(text, stacklevel=4)


# The shortest form in Python: `stoker.run(job)`.


def run(job: Job, *, folder: Path | str = ".", name: str = "", twin: bool = False) -> RunHandle:
    """Submits a job and returns the run immediately. Relative paths of the job are relative to `folder`. With `twin` it
    runs on the twin of its cloud, for free."""
    placed = replace(job, on=twin_of(job.on)) if twin else job
    return Client.connect().submit(placed, folder, name=name)


def cost(by: str = "experiment", since: datetime | timedelta | None = None, experiment: str = "") -> Costs:
    """What runs have cost, summed by `experiment`, `person`, `day`, `cluster` or `run`. `since` may be a duration."""
    return Client.connect().costs(by, since, experiment)
