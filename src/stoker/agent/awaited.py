"""Metrics that the job speaks of, `stop_when` and `retention.best`, and that the script has not reported. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Callable

from stoker.agent.points import Point
from stoker.model.job import Job

PATIENCE_S = 60.0  # between the first other metric and a word about one that is missing
SHARE = 0.1  # of the time that the run may take, likewise
_MOST_NAMED = 6


class Awaited:
    """Seen by one thread, asked by another. Warns once for each metric, and knows at the end which never came."""

    def __init__(self, job: Job, tell: Callable[[str, str], None], clock: Callable[[], float]) -> None:
        by_field = {
            "stop_when": job.stop_when.metric if job.stop_when else "",
            "retention.best": (job.retention.best or "").removeprefix("-"),
        }
        self._awaited = {metric: field for field, metric in by_field.items() if metric}
        limits = [one for one in (job.time_limit, job.deadline) if one]
        self._patience_s = SHARE * min(limits) if limits else PATIENCE_S
        self._tell = tell
        self._clock = clock
        self._begun = clock()
        self._names: dict[str, None] = {}
        self._first_at: float | None = None  # when the first metric was seen
        self._warned: set[str] = set()

    def begin(self) -> None:
        """The script starts now."""
        self._begun = self._clock()

    def see(self, point: Point) -> None:
        if self._awaited and point.values:
            self._names.update(dict.fromkeys(point.values))
            self._first_at = self._clock() if self._first_at is None else self._first_at

    def act(self) -> None:
        """To be called often."""
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
        said = f"`{self._awaited[metric]}` has not seen the metric `{metric}`"
        if near := _nearest(metric, names):
            return f"{said}; did you mean `{near}`?"
        known = ", ".join(f"`{name}`" for name in names[:_MOST_NAMED]) + (", …" if len(names) > _MOST_NAMED else "")
        return f"{said}; seen: {known}" if names else f"{said}, nor any other"


def _nearest(metric: str, names: list[str]) -> str:
    """What was probably meant: nearly the same name, or one of the same words."""
    plain = {name.lower().replace("/", "_").replace("-", "_"): name for name in names}
    found = difflib.get_close_matches(metric.lower().replace("/", "_").replace("-", "_"), plain, n=1, cutoff=0.6)
    return plain[found[0]] if found else ""
