"""The target of `stop_when`: recognised in the metrics, then the script is stopped cleanly."""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable
from pathlib import Path

from stoker.agent.notice.stopping import Stopping
from stoker.agent.processes.ranks import RankProcesses
from stoker.agent.shipping.points import MetricPoint
from stoker.model.job.job import Job
from stoker.model.job.target import Target
from stoker.model.run.report import Outcome

PATIENCE_S = 30.0  # how long a script may continue after reaching the target, to save its work


class Goal:
    """One thread sees points, another acts.

    A script that catches SIGTERM gets one and ends by itself. Any other continues until it reports the metric again: by
    then it has saved whatever it saves after each report.
    """

    def __init__(self, target: Target | None, stop_file: Path, tell: Callable[[str, str], None]) -> None:
        self._target = target
        self._stop_file = stop_file
        self._tell = tell
        self._value = 0.0
        self._by: tuple[str, int] | None = None  # the source and the rank that reached it
        self._again = False
        self._told_at = 0.0
        self._signalled = False

    @property
    def reached(self) -> bool:
        return self._by is not None

    def __str__(self) -> str:
        metric = self._target.metric if self._target else ""
        return f"stopped early: {metric} {self._value:g} met `{self._target}`"

    def see(self, point: MetricPoint, source: str) -> None:
        value = point.values.get(self._target.metric) if self._target else None
        if value is None or self._target is None:
            return
        if self._by is None:
            if self._target.reached_by(value):
                self._value = value
                self._by = (source, point.rank)
        elif self._by == (source, point.rank):
            self._again = True

    def act(self, ranks: RankProcesses, stopping: Stopping) -> None:
        """Call it often, in the thread that watches the ranks."""
        if self._by is None:
            return
        if not self._told_at:
            self._told_at = time.monotonic()
            self._stop_file.touch()
            self._tell("target-reached", str(self))
            self._signalled = ranks.tell(ranks.listeners())
        passed_s = time.monotonic() - self._told_at
        if passed_s >= PATIENCE_S or (self._again and not self._signalled):
            stopping.ask(Outcome.TARGET_REACHED, str(self))


# Metrics that the job names in `stop_when` and `retention.best` and that the script has not reported. Pure.

MISSING_AFTER_S = 60.0  # between the first other metric and the warning about a missing one
SHARE = 0.1  # of the run's time limit, likewise
_MOST_NAMED = 6


class Awaited:
    """One thread sees points, another asks. Warns once per metric, and knows at the end which were never reported."""

    def __init__(self, job: Job, tell: Callable[[str, str], None], clock: Callable[[], float]) -> None:
        by_field = {
            "stop_when": job.stop_when.metric if job.stop_when else "",
            "retention.best": (job.retention.best or "").removeprefix("-"),
        }
        self._awaited = {metric: field for field, metric in by_field.items() if metric}
        limits = [one for one in (job.time_limit, job.deadline) if one]
        self._patience_s = SHARE * min(limits) if limits else MISSING_AFTER_S
        self._tell = tell
        self._clock = clock
        self._begun = clock()
        self._names: dict[str, None] = {}
        self._first_at: float | None = None  # when the first metric was seen
        self._warned: set[str] = set()

    def begin(self) -> None:
        """The script starts now."""
        self._begun = self._clock()

    def see(self, point: MetricPoint) -> None:
        if self._awaited and point.values:
            self._names.update(dict.fromkeys(point.values))
            self._first_at = self._clock() if self._first_at is None else self._first_at

    def act(self) -> None:
        """Call it often."""
        if not self._awaited or len(self._warned) == len(self._awaited):
            return
        names = list(self._names)
        waited_s = self._clock() - (self._begun if self._first_at is None else self._first_at)
        for metric in self._awaited:
            if metric in self._names or metric in self._warned:
                continue
            if (names and _nearest(metric, names)) or waited_s >= self._patience_s:
                self._warned.add(metric)
                self._tell("metric-missing", f"warning: {self._words(metric, names)}")

    def missing(self) -> str:
        """For the last line; empty where every metric was reported."""
        names = list(self._names)
        return "; ".join(self._words(one, names) for one in self._awaited if one not in self._names)

    def _words(self, metric: str, names: list[str]) -> str:
        said = f"the script has not reported the metric `{metric}` of `{self._awaited[metric]}`"
        if near := _nearest(metric, names):
            return f"{said}; did you mean `{near}`?"
        known = ", ".join(f"`{name}`" for name in names[:_MOST_NAMED]) + (", …" if len(names) > _MOST_NAMED else "")
        return f"{said}; reported: {known}" if names else f"{said}, nor any other"


def _nearest(metric: str, names: list[str]) -> str:
    """What was probably meant: nearly the same name, or one with the same words."""
    plain = {name.lower().replace("/", "_").replace("-", "_"): name for name in names}
    found = difflib.get_close_matches(metric.lower().replace("/", "_").replace("-", "_"), plain, n=1, cutoff=0.6)
    return plain[found[0]] if found else ""
