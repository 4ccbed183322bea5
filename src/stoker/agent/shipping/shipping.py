"""Everything that goes from the node to the store while a script runs: logs, metrics and outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stoker.agent.machine.machine import NodeFolder
from stoker.agent.shipping.eventfiles import CsvPoints
from stoker.agent.shipping.logs import LogShipper, Masking, RankLog
from stoker.agent.shipping.metrics import MetricsShipper, event_files, logged_points
from stoker.agent.shipping.outputs import Mirror, OutputsShipper
from stoker.agent.shipping.points import Point
from stoker.agent.shipping.printed import CountedLines, Counters, PrintedPoints
from stoker.agent.shipping.worker import Trouble
from stoker.model.node.orders import Orders
from stoker.model.snapshot import Snapshot
from stoker.stores import Store

CATCH_UP_S = 3.0

Tell = Callable[[str, str], None]
Seen = Callable[[Point, str], None]  # and what the source is called


class Shipping:
    def __init__(
        self,
        store: Store,
        orders: Orders,
        folder: NodeFolder,
        masking: Masking,
        trouble: Trouble,
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
        self._carried = Snapshot(())
        self._sizes: Mapping[str, int] = {}
        self.counters = Counters()
        self._seen: Seen = lambda _point, _source: None

    def begin_from(self, carried: Snapshot) -> None:
        """These outputs were put back: earlier attempts have shipped them, and the metrics in them."""
        self._carried = carried
        self._mirror.begin_from(carried)

    def continue_from(self, sizes: Mapping[str, int]) -> None:
        """What earlier machines of this attempt have shipped, by key: it is added to."""
        self._sizes = sizes
        self.metrics.continue_from(sizes)

    def catch_up(self) -> None:
        """A run resumes from a checkpoint, so nothing written or printed before it may be missing. Raises StoreFailed.

        Logs and metrics that the store refuses are not waited for long: they are tried again anyway.
        """
        self._mirror.sync(hasty=True)
        for shipper in (self.metrics, self.logs):
            shipper.catch_up(CATCH_UP_S)

    def start_log(self, rank: int) -> None:
        """From here on what is printed by, or for, the rank is shipped."""
        if not self.logs.has(rank):
            self.logs.add(rank, RankLog(self._store, self._orders, self._folder, rank, self._sizes))
        self.logs.start()

    def start(self, ranks: Sequence[int], seen: Seen = lambda _point, _source: None) -> None:
        """From here on metrics and outputs are shipped too, and each point of a metric is shown to `seen`."""
        read = {one.path: one.size_bytes for one in self._carried.entries}
        metrics, rules = self.metrics, self._orders.job.metrics
        metrics.sources = [
            CountedLines(self._folder.log(ranks[0]), self.counters),
            logged_points(self._folder.metrics),
            *event_files(self._folder.work, self._outputs, ranks[0], read),
            CsvPoints(self._folder.work, self._outputs, ranks[0], read),
        ]
        for rank in ranks:  # behind the others, which say what need not be guessed
            self.start_log(rank)
            points = PrintedPoints(self._folder.log(rank), rank, rules, metrics.reported, self._tell)
            metrics.sources.append(points if rank == ranks[0] else points.objects_only())
        self._seen = seen
        for worker in self._workers:
            worker.start()

    def hasten(self, hurried: bool) -> None:
        """The node is about to go, or stays after all."""
        self.logs.hurried = self.metrics.hurried = hurried

    def end(self) -> None:
        """Nobody prints, reports or writes any more: what is left may be shipped."""
        for worker in self._workers:
            worker.ending.set()

    def steps(self) -> list[Callable[[], None]]:
        """After these, everything is in the store, however long that takes."""
        return [self.end, *(worker.finish for worker in self._workers)]

    def _show(self, point: Point, source: str) -> None:
        self._seen(point, source)
        self.counters.see(point)

    def progress(self) -> tuple[float | None, dict[str, float]]:
        """The last step reported so far, and the last value of every metric."""
        seen = self.metrics.summaries.now()
        steps = [one.step for one in seen.values() if one.step is not None]
        return max(steps, default=None), {name: one.last for name, one in seen.items()}

    def figures(self) -> dict[str, Any]:
        """What a report says about it."""
        files, size_bytes = self._mirror.totals
        return {
            "log_bytes": self.logs.sizes(),
            "metrics": self.metrics.summaries.now(),
            "progress": self.metrics.progress,
            "output_files": files,
            "output_bytes": size_bytes,
        }
