"""Everything that a node uploads while a script runs: logs, metrics and outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stoker.agent.checkpoints.folders.files import walk
from stoker.agent.machine.machine import NodeFolder
from stoker.agent.shipping.logs import LogShipper, Masking, RankLog
from stoker.agent.shipping.metrics.metrics import EventFilePoints, MetricsShipper, are_apart, event_files, logged_points
from stoker.agent.shipping.metrics.points import MetricPoint
from stoker.agent.shipping.metrics.printed import HELD_S, CountedLines, Counters, PrintedPoints
from stoker.agent.shipping.metrics.tablefiles import TableFilePoints
from stoker.agent.shipping.metrics.trackers import MLFLOW, WANDB, tracker_points
from stoker.agent.shipping.outputs import Mirror, OutputsShipper
from stoker.agent.shipping.worker import StoreTrouble
from stoker.model.job.sections import CheckpointPaths
from stoker.model.orders import Orders
from stoker.model.snapshot import Snapshot
from stoker.stores import Store

CATCH_UP_S = 3.0

_FILES = {
    EventFilePoints.name: "TensorBoard event files",
    TableFilePoints.name: "CSV or JSON files",
    MLFLOW: "MLflow's store",
    WANDB: "W&B's offline run",
}

Tell = Callable[[str, str], None]
Seen = Callable[[MetricPoint, str], None]  # with the name of the source


class Shipping:
    def __init__(
        self,
        store: Store,
        orders: Orders,
        folder: NodeFolder,
        masking: Masking,
        trouble: StoreTrouble,
        tell: Tell = lambda _kind, _text: None,
    ) -> None:
        self._store = store
        self._orders = orders
        self._folder = folder
        self._tell = tell
        self._outputs = folder.work / orders.job.outputs
        self.logs = LogShipper(masking, trouble)
        self.metrics = MetricsShipper(store, orders, masking, trouble, self._show)
        self._mirror = Mirror(store, orders, self._outputs, tell)
        self._workers = (self.metrics, self.logs, OutputsShipper(self._mirror, trouble))
        self._restored: Mapping[str, int] = {}
        self._sizes: Mapping[str, int] = {}
        self.counters = Counters()
        self._seen: Seen = lambda _point, _source: None
        self._told: set[str] = set()  # kinds of files in which metrics were found

    def begin_from(self, carried: Snapshot) -> None:
        """These outputs were restored: earlier attempts have uploaded them. They have read the metrics in them, and in
        checkpoints in the same folder, too."""
        lying = walk(str(self._outputs), lambda _path, _error: None)
        self._restored = {path: entry.stat().st_size for path, entry in lying if entry and entry.is_file()}
        self._mirror.begin_from(carried)

    def continue_from(self, sizes: Mapping[str, int]) -> None:
        """What earlier VMs of this attempt have uploaded, by key: this one appends."""
        self._sizes = sizes
        self.metrics.continue_from(sizes)

    def catch_up(self) -> None:
        """A run resumes from a checkpoint, so everything written or printed before must be uploaded. Raises
        StoreFailed.

        Logs and metrics that the store refuses are not waited for long: they are retried anyway.
        """
        self._mirror.sync(hasty=True)
        for shipper in (self.metrics, self.logs):
            shipper.catch_up(CATCH_UP_S)

    def start_log(self, rank: int) -> None:
        """From here on, uploads the output of the rank."""
        if not self.logs.has(rank):
            self.logs.add(rank, RankLog(self._store, self._orders, self._folder, rank, self._sizes))
        self.logs.start()

    def start(self, ranks: Sequence[int], seen: Seen = lambda _point, _source: None) -> None:
        """From here on, uploads metrics and outputs too, and passes each point to `seen`."""
        read = self._restored
        job, metrics = self._orders.job, self.metrics
        folders = (self._folder.work / one for one in CheckpointPaths(job.checkpoints).folders)
        kept = [one for one in folders if are_apart(one, self._outputs)]
        metrics.sources = [
            CountedLines(self._folder.log(ranks[0]), self.counters),
            logged_points(self._folder.metrics),
            *event_files(self._folder.work, self._outputs, ranks[0], read, kept),
            TableFilePoints(self._folder.work, self._outputs, ranks[0], read, kept),
            *tracker_points(self._folder.work, self._outputs, ranks[0], job.env, kept),
        ]
        for rank in ranks:  # after the others, which contain what need not be guessed
            self.start_log(rank)
            points = PrintedPoints(self._folder.log(rank), rank, job.metrics, metrics.reported, self._tell)
            metrics.sources.append(points if rank == ranks[0] else points.objects_only())
        self._seen = seen
        for worker in self._workers:
            worker.start()

    def hasten(self, hurried: bool) -> None:
        """The node is about to be evicted, or no longer."""
        self.logs.hurried = self.metrics.hurried = hurried
        for source in self.metrics.sources:
            if isinstance(source, PrintedPoints):
                source.held_s = 0.0 if hurried else HELD_S

    def end(self) -> None:
        """Nobody prints, reports or writes any more: the rest can be uploaded."""
        for worker in self._workers:
            worker.ending.set()

    def steps(self) -> list[Callable[[], None]]:
        """After these, everything is in the store, however long that takes."""
        return [self.end, *(worker.finish for worker in self._workers)]

    def _show(self, point: MetricPoint, source: str) -> None:
        self._seen(point, source)
        if source in _FILES and source not in self._told:
            self._told.add(source)
            self._tell("metrics", f"metrics found in {_FILES[source]}: {', '.join(list(point.values)[:8])}")
        self.counters.see(point)

    def progress(self) -> tuple[float | None, dict[str, float]]:
        """The last reported step, and the last value of every metric."""
        seen = self.metrics.summaries.now()
        steps = [one.step for one in seen.values() if one.step is not None]
        return max(steps, default=None), {name: one.last for name, one in seen.items()}

    def figures(self) -> dict[str, Any]:
        """The fields of a report."""
        files, size_bytes = self._mirror.totals
        return {
            "log_bytes": self.logs.sizes(),
            "metrics": self.metrics.summaries.now(),
            "progress": self.metrics.progress,
            "output_files": files,
            "output_bytes": size_bytes,
        }
