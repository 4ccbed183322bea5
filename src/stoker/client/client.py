"""The client: everything a program can ask of a server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import ROUND_DOWN, Decimal
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from stoker.client import launch, sending
from stoker.client.connection import Connection
from stoker.client.handle import Run
from stoker.client.sending import Again, Notice, Progress
from stoker.client.settings import Settings, from_environment
from stoker.errors import NotFound
from stoker.model import run as model
from stoker.model import wire
from stoker.model.fields import nearest
from stoker.model.job import Job
from stoker.model.orders import Terminal
from stoker.model.pruning import PruneRule
from stoker.model.rehearsal import is_twin, twin_of
from stoker.model.run import RunState
from stoker.model.snapshot import Snapshot

if TYPE_CHECKING:
    from stoker.client.comparison import Difference
    from stoker.client.data.datasets import Datasets
    from stoker.client.datamoves import Agree
    from stoker.client.limits import Limits
    from stoker.client.submission import Plan
    from stoker.model.costs import Costs
    from stoker.model.forecast import Forecast
    from stoker.model.pruning import Spared
    from stoker.model.sizes import Sizes

NEWEST = "last"
_PAGE = 200
_CENT = Decimal("0.01")


class Client:
    """A server that runs are submitted to and asked for: `Client.connect()` finds this computer's, or starts it."""

    def __init__(self, settings: Settings, connection: Connection) -> None:
        self.settings = settings
        self.connection = connection

    @classmethod
    def connect(cls, settings: Settings | None = None, *, start: bool = True) -> Client:
        """Settings default to the environment's. Starts this computer's server if need be, unless `start` is off."""
        given = settings or from_environment()
        return cls(given, launch.connect(given, start=start))

    @property
    def datasets(self) -> Datasets:
        """Data in stores, with versions."""
        from stoker.client.data.datasets import Datasets  # not needed to submit or follow

        return Datasets(self.connection, self.settings)

    @property
    def limits(self) -> Limits:
        """What people may spend in a day or a month, for administrators."""
        from stoker.client.limits import Limits  # not needed to submit or follow

        return Limits(self.connection)

    def plan(self, job: Job, folder: Path | str = ".") -> Plan:
        """What `submit` would do. Relative paths of the job start from `folder`."""
        from stoker.client.submission import plan  # not needed to submit

        return plan(job, Path(folder), self.settings, self.connection)

    def forecast(self, job: Job, currency: str = "USD", *, hours: float | None = None, both: bool = False) -> Forecast:
        """What the job is expected to take and to cost with each offer that fits it, and the cheapest way. `hours` is
        how much work it is, instead of what earlier runs took; `both`: spot and on demand, unless the job says no."""
        from stoker.client.spending import forecast  # not needed to submit

        return forecast(self.connection, job, currency, hours, both=both)

    def costs(self, by: str = "experiment", since: datetime | timedelta | None = None, experiment: str = "") -> Costs:
        """What runs have cost, summed by `experiment`, `person`, `day`, `cluster` or `run`. `since`: or a time ago."""
        from stoker.client.spending import costs  # not needed to submit or follow

        return costs(self.connection, by, since, experiment)

    def submit(
        self,
        job: Job,
        folder: Path | str = ".",
        *,
        name: str = "",
        progress: Progress | None = None,
        twin: bool = False,
        terminal: Terminal | None = None,
        say: Callable[[str], None] = lambda _: None,
        notice: Notice | None = None,
        agree: Agree | None = None,
    ) -> Run:
        """Makes a run. `name` overrides `<job name>-<n>`. With `twin` it runs on the twin of its cloud, which is
        brought up if need be; `say` hears of what takes long then. `terminal` is one that the script is to have,
        on this computer only: whoever submits has to attach it. `notice` hears of files that are not sent because
        they hold secrets; without one they are told of as Python's warnings. `agree` is asked before data of this
        computer is put into the store for machines that cannot read it here; without one, such a job is refused."""
        if twin:
            job = replace(job, on=twin_of(job.on))
        store, given = self._stage(job, say), Path(folder)
        datasets = self._put(job, given, store, agree) if job.data and agree else {}
        return self._handle(
            sending.submit(
                job,
                given,
                self.settings,
                self.connection,
                name=name,
                progress=progress,
                store=store,
                terminal=terminal,
                notice=notice or _warn,
                datasets=datasets,
            )
        )

    def rerun(self, run: str, job: Job | None = None, *, from_checkpoint: bool = False, name: str = "") -> Run:
        """A new run with the code, software and data of an old one, and with its job unless another is given; secrets
        come from the environment. With `from_checkpoint` it starts from the old one's last checkpoint."""
        old = self.run(run).facts
        return self._again(old, Again(job or sending.without_keeping(old.job), from_checkpoint), name)

    def resume(self, run: str, job: Job | None = None, *, name: str = "") -> Run:
        """Continues a run that failed or was cancelled from its last checkpoint, as a new run that is named after it.
        `job` is what to run; None: `job_to_resume`. A run that is paused continues itself, with the job's budget.
        Raises Conflict where the run is under way or has succeeded, and NotFound where it has no checkpoint."""
        old = self.run(run)
        if old.state is RunState.PAUSED:
            return old.set_budget(job.budget if job else old.facts.budget)
        return self._again(old.facts, Again(job or self.job_to_resume(old), resumes=True), name)

    def job_to_resume(self, old: Run) -> Job:
        """The job of a run with what is left of its budget."""
        job = sending.without_keeping(old.facts.job)
        if old.facts.budget is None:
            return replace(job, budget=None)
        left = old.facts.budget - old.budget().spent_usd
        return replace(job, budget=max(left.quantize(_CENT, ROUND_DOWN), _CENT))

    def runs(self, limit: int = 50, experiment: str = "", state: str = "") -> list[model.Run]:
        """Newest first. `state` may be one of RunState, or `active`."""
        found: list[model.Run] = []
        before: str | None = ""
        while before is not None and len(found) < limit:
            count = min(limit - len(found), _PAGE)
            query = {"limit": count, "before": before or None, "experiment": experiment or None, "state": state or None}
            page = self.connection.get("/v1/runs", query)
            found += [wire.from_plain(model.Run, row) for row in page["runs"]]
            before = page["next"]
        return found

    def run(self, name: str) -> Run:
        """The run of this name. `last` is the newest of all, an experiment's name the newest of its runs."""
        if name != NEWEST:
            try:
                return self._handle(wire.from_plain(model.Run, self.connection.get(f"/v1/runs/{quote(name, safe='')}")))
            except NotFound:
                pass
        newest = self.runs(limit=1, experiment="" if name == NEWEST else name)
        if newest:
            return self._handle(newest[0]).refresh()  # a list leaves out what is long
        raise self._unknown(name)

    def remove(self, *names: str) -> Mapping[str, str]:
        """Removes ended runs and everything the server holds of them: all of them, or none where one cannot go. Outputs
        already brought back stay. Names those of which something is still in a store, and why: the server tries on."""
        from stoker.client.housekeeping import remove  # not needed to submit or follow

        return remove(self.connection, [self.run(name).name for name in names])

    def sizes(self, *names: str) -> Sizes:
        """What runs take up in their stores and on the server's computer."""
        from stoker.client.housekeeping import sizes  # not needed to submit or follow

        return sizes(self.connection, names)

    def prunable(
        self, older_than: timedelta, *, keep_best: bool = False, experiment: str = ""
    ) -> tuple[list[model.Run], list[Spared]]:
        """Which runs ended longer ago than this, and which of those stay all the same: the newest of each experiment
        always, with `keep_best` also its best. Removes nothing: give their names to `remove`."""
        from stoker.client.housekeeping import prunable  # not needed to submit or follow

        return prunable(self.connection, PruneRule(older_than.total_seconds(), keep_best, experiment))

    def compare(self, first: str, second: str) -> Difference:
        """What differs between two runs."""
        from stoker.client.comparison import compare  # not needed to submit or follow

        one, other = self.run(first).facts, self.run(second).facts
        return compare(one, other, self._code(one), self._code(other))

    def _stage(self, job: Job, say: Callable[[str], None]) -> str:
        """The store to keep a run in; empty: the workspace's."""
        if not is_twin(job.on):
            return ""
        from stoker.client import rehearsal  # a run in the real world has no use for it

        return rehearsal.stage(job.on, self.settings, self.connection, say)

    def _put(self, job: Job, folder: Path, store: str, agree: Agree) -> dict[str, str]:
        """The datasets, by the name of the input, that data of this computer has become."""
        from stoker.client.datamoves import moves  # where data is in a store already, nobody needs it

        datasets = self.datasets
        found = moves(job, folder, self.connection, datasets)
        if not found:
            return {}
        progress = agree(found)
        return {
            one.use.name: datasets.put(one.use.where, one.dataset, store=store, progress=progress).version.ref
            for one in found
        }

    def _again(self, old: model.Run, again: Again, name: str) -> Run:
        store = self._stage(again.job, lambda _: None)
        return self._handle(sending.submit_again(old, again, self.settings, self.connection, name=name, store=store))

    def _handle(self, facts: model.Run) -> Run:
        return Run(facts, self.connection, self.settings)

    def _code(self, run: model.Run) -> Snapshot:
        return wire.from_plain(Snapshot, self.connection.get(f"/v1/snapshots/{quote(run.snapshot, safe='')}"))

    def _unknown(self, name: str) -> NotFound:
        runs = self.runs(limit=_PAGE)
        if not runs:
            return NotFound("there are no runs yet", hint="start one with `stoker run`")
        near = nearest(name, [run.name for run in runs] + [run.experiment for run in runs])
        return NotFound(
            f"there is no run `{name}`", hint=f"did you mean `{near}`?" if near else "list them: `stoker ps`"
        )


def _warn(text: str) -> None:
    import warnings  # few submissions have anything to warn of

    warnings.warn(text, stacklevel=4)
