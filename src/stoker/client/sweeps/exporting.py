"""Runs as MLflow's tracking has them: parameters, metrics with their history, artifacts, and a parent for each sweep.

Everything goes through MLflow's own client, which knows the team's servers and logins. A run that was exported before
is found by a tag: only what is new is sent, so an export may be repeated, also after it was interrupted.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.client.api.client import Client
from stoker.client.api.handle import RunHandle
from stoker.client.api.reading import Metrics
from stoker.client.sweeps.results import Results
from stoker.errors import BadInput, NotFound
from stoker.model.cause import Cause
from stoker.model.run.run import Run, RunState
from stoker.model.run.sweep import ResultRow
from stoker.stores.trees.landing import MARKER

_RUN, _SWEEP, _NEXT, _DONE = "stoker.run", "stoker.sweep", "stoker.next_point", "stoker.complete"
_FORBIDDEN = re.compile(r"[^/\w.\- :]")  # in names
_LONGEST = 250
_AT_ONCE = 1000  # metrics in a request
_PARAMS_AT_ONCE = 100
_ENDS = {RunState.SUCCEEDED: "FINISHED", RunState.FAILED: "FAILED", RunState.CANCELLED: "KILLED"}


@dataclass(frozen=True, slots=True)
class Exported:
    """What came of an export."""

    experiment: str
    url: str  # of the tracking server
    new: int = 0
    updated: int = 0
    complete: int = 0  # that were there already, whole


class MlflowExport:
    """An export into one experiment of MLflow. Raises BadInput if MLflow is not installed here, or refuses."""

    def __init__(self, client: Client, experiment: str, url: str = "", *, artifacts: bool = True) -> None:
        try:
            from mlflow.exceptions import MlflowException  # an extra, and slow to import
            from mlflow.tracking import MlflowClient
        except ImportError as error:
            message = "an export to MLflow requires its client on this computer"
            raise BadInput(message, hint="pip install mlflow-skinny", cause=Cause.PACKAGE_MISSING) from error
        self._client, self._experiment, self._artifacts = client, experiment, artifacts
        self._refusal = MlflowException
        self._connect: Callable[[], Any] = lambda: MlflowClient(url or None)
        self._mlflow: Any = None
        self._id = ""
        self._known: dict[str, Any] = {}  # MLflow's runs, by the name of ours

    def export(self, results: Results, progress: Callable[[int], None] = lambda _: None) -> Exported:
        """`progress` is told how many runs are done."""
        try:
            return self._exported(results, progress)
        except self._refusal as error:
            text = str(error).splitlines()[0]
            raise BadInput(f"MLflow refused: {text}", hint="its address: `--to URL` or MLFLOW_TRACKING_URI") from error

    def _exported(self, results: Results, progress: Callable[[int], None]) -> Exported:
        self._mlflow = self._connect()
        found = self._mlflow.get_experiment_by_name(self._experiment)
        self._id = found.experiment_id if found else self._mlflow.create_experiment(self._experiment)
        tagged = ((one.data.tags, one) for one in self._there())
        self._known = {name: one for tags, one in tagged if (name := tags.get(_RUN) or tags.get(_SWEEP))}
        counts = {"new": 0, "updated": 0, "complete": 0}
        for at, row in enumerate(results.rows):
            counts[self._one(row)] += 1
            progress(at + 1)
        return Exported(self._experiment, self._mlflow.tracking_uri, **counts)

    def _there(self) -> Iterator[Any]:
        token = None
        while True:
            page = self._mlflow.search_runs([self._id], max_results=1000, page_token=token)
            yield from page
            token = page.token
            if not token:
                return

    def _one(self, row: ResultRow) -> str:
        known = self._known.get(row.name)
        if known and known.data.tags.get(_DONE):
            return "complete"
        handle = self._client.run(row.name)
        run = handle.facts
        if known is None:
            known = self._begun(row, run)
            self._known[row.name] = known
            told = "new"
        else:
            told = "updated"
        id, after = known.info.run_id, int(known.data.tags.get(_NEXT, 0))
        points, behind = handle.new_metrics(after)
        self._send(id, points)
        self._mlflow.set_tag(id, _NEXT, str(behind))
        if run.state.ended:
            self._end(id, row, handle)
        return told

    def _begun(self, row: ResultRow, run: Run) -> Any:
        from mlflow.entities import Param  # likewise

        tags = {_RUN: row.name, "mlflow.source.name": run.job.run, "mlflow.user": run.person or "stoker"}
        if row.sweep:
            tags |= {"mlflow.parentRunId": self._parent(row), "stoker.trial": str(row.trial)}
        began = _ms(run.started_at or run.submitted_at)
        made = self._mlflow.create_run(self._id, start_time=began, tags=tags, run_name=row.name)
        params = [Param(_name(name), text) for name, text in row.values.items()]
        for at in range(0, len(params), _PARAMS_AT_ONCE):
            self._mlflow.log_batch(made.info.run_id, params=params[at : at + _PARAMS_AT_ONCE])
        return made

    def _parent(self, row: ResultRow) -> str:
        if row.sweep not in self._known:
            made = self._mlflow.create_run(self._id, tags={_SWEEP: row.sweep}, run_name=row.sweep)
            self._mlflow.set_terminated(made.info.run_id, "FINISHED")
            self._known[row.sweep] = made
        return str(self._known[row.sweep].info.run_id)

    def _send(self, id: str, points: Metrics) -> None:
        from mlflow.entities import Metric  # likewise

        metrics = []
        for at, point in enumerate(points):
            step = at if point.step is None else int(point.step)
            metrics += [Metric(_name(name), value, _ms(point.at), step) for name, value in point.values.items()]
        for first in range(0, len(metrics), _AT_ONCE):
            self._mlflow.log_batch(id, metrics=metrics[first : first + _AT_ONCE])

    def _end(self, id: str, row: ResultRow, handle: RunHandle) -> None:
        run = handle.facts
        for name, text in (("usd", f"{row.usd:f}"), ("seconds", f"{row.seconds}"), ("nodes", f"{row.nodes}")):
            self._mlflow.set_tag(id, f"stoker.{name}", text)
        if self._artifacts:
            self._upload(id, handle)
        self._mlflow.set_terminated(id, _ENDS[run.state], _ms(run.ended_at or run.submitted_at))
        self._mlflow.set_tag(id, _DONE, "true")

    def _upload(self, id: str, handle: RunHandle) -> None:
        """The outputs, from this computer if they are here."""
        landed = Path(handle.facts.landed) if handle.facts.landed else None
        if landed and landed.is_dir():
            self._store(id, landed)
            return
        with tempfile.TemporaryDirectory(prefix="stoker-export-") as folder:
            try:
                found = handle.fetch(folder)
            except NotFound:
                return  # it has none
            self._store(id, found)

    def _store(self, id: str, folder: Path) -> None:
        for path in sorted(folder.iterdir()):
            if path.name != MARKER:
                self._mlflow.log_artifact(id, str(path))


def _name(name: str) -> str:
    """As MLflow takes it: `hr@10` is `hr_10`."""
    return _FORBIDDEN.sub("_", name)[:_LONGEST]


def _ms(moment: Any) -> int:
    return int(moment.timestamp() * 1000)
