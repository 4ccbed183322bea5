"""The results of an experiment: its runs with their values and metrics, groups of runs with mean and spread, and what
plots of them show."""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property
from typing import Any, TypeVar
from urllib.parse import quote

from stoker.client.api.connection import Connection
from stoker.client.report.comparison import LOWER_IS_BETTER
from stoker.errors import BadInput, NotFound
from stoker.model import wire
from stoker.model.cause import Cause
from stoker.model.job.fields import nearest
from stoker.model.run.run import RunState
from stoker.model.run.sweep import ResultRow

_REPEATS = re.compile(r"(?i)(.*[_.-])?(seed|fold|repeat|replica|trial_?id)")  # the same training once more
# Progress and settings, not results.
_NOT_TELLING = re.compile(
    r"(?i)progress|total_steps|total_epochs|(.*/)?(epoch|lr([-_].*)?|learning_rate|grad_norm|gnorm|momentum|weight_decay)"
)


@dataclass(frozen=True, slots=True)
class ResultGroup:
    """Runs with the same values. `mean` and `spread` are those of the metric; None: no run of it has reported it."""

    values: Mapping[str, str]
    runs: tuple[ResultRow, ...]
    figures: tuple[float, ...] = ()  # the metric of each run that reported it
    best: ResultRow | None = None

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self.figures) if self.figures else None

    @property
    def spread(self) -> float | None:
        """The standard deviation of the sample; None for fewer than two."""
        return statistics.stdev(self.figures) if len(self.figures) > 1 else None

    @property
    def seconds(self) -> float:
        """Per run."""
        return statistics.fmean(run.seconds for run in self.runs)

    @property
    def usd(self) -> Decimal:
        """Per run."""
        return sum((run.usd for run in self.runs), Decimal(0)) / len(self.runs)


@dataclass(frozen=True)
class Results:
    """The runs of an experiment or a sweep, oldest first. `metric` is what they are compared by; empty: none."""

    name: str
    rows: tuple[ResultRow, ...]
    metric: str = ""
    lower_is_better: bool = False
    by: tuple[str, ...] = field(default=())  # parameters that groups differ in

    def figure(self, row: ResultRow) -> float | None:
        """Its last value of the metric."""
        found = row.metrics.get(self.metric)
        return found.last if found and math.isfinite(found.last) else None

    @cached_property
    def groups(self) -> tuple[ResultGroup, ...]:
        """By the values of `by`, the best mean first; those without the metric come last."""
        found: dict[tuple[str, ...], list[ResultRow]] = {}
        for row in self.rows:
            found.setdefault(tuple(row.values.get(name, "") for name in self.by), []).append(row)
        groups = [self._group(values, runs) for values, runs in found.items()]
        return tuple(sorted(groups, key=lambda one: self.rank(one.mean)))

    @cached_property
    def best(self) -> ResultRow | None:
        return self._best(self.rows)

    @property
    def states(self) -> Mapping[RunState, int]:
        return Counter(row.state for row in self.rows)

    @property
    def usd(self) -> Decimal:
        return sum((row.usd for row in self.rows), Decimal(0))

    def rank(self, figure: float | None) -> float:
        """Sorts the best first."""
        if figure is None:
            return math.inf
        return figure if self.lower_is_better else -figure

    def records(self) -> list[dict[str, Any]]:
        """One flat row for each run: for CSV, and for frames. A metric with the name of a parameter is `metric.lr`."""
        known = parameters(self.rows)
        columns = {name: f"matrix.{name}" if name in _COLUMNS else name for name in known}
        taken = {*_COLUMNS, *columns.values()}
        return [_record(row, columns, taken) for row in self.rows]

    def frame(self) -> Any:
        """A pandas frame with one row for each run. Requires pandas."""
        try:
            import pandas  # not a dependency: most programs do not need it
        except ImportError as error:
            raise BadInput("a frame requires pandas", hint="pip install pandas", cause=Cause.PACKAGE_MISSING) from error
        frame = pandas.DataFrame.from_records(self.records())
        for name in parameters(self.rows):
            column = f"matrix.{name}" if name in _COLUMNS else name
            numbers = pandas.to_numeric(frame[column], errors="coerce")
            frame[column] = numbers.where(numbers.notna(), frame[column])
        return frame

    def _group(self, values: Sequence[str], runs: Sequence[ResultRow]) -> ResultGroup:
        figures = tuple(figure for run in runs if (figure := self.figure(run)) is not None)
        return ResultGroup(dict(zip(self.by, values, strict=True)), tuple(runs), figures, self._best(runs))

    def _best(self, rows: Iterable[ResultRow]) -> ResultRow | None:
        measured = [row for row in rows if self.figure(row) is not None]
        return min(measured, key=lambda row: self.rank(self.figure(row)), default=None)


_COLUMNS = ("run", "state", "sweep", "seconds", "usd", "nodes")  # of every run


def _record(row: ResultRow, columns: Mapping[str, str], taken: Collection[str]) -> dict[str, Any]:
    values = {column: row.values.get(name, "") for name, column in columns.items()}
    metrics = {f"metric.{name}" if name in taken else name: one.last for name, one in row.metrics.items()}
    shown = {"run": row.name, "state": str(row.state), "sweep": row.sweep}
    return {**shown, **values, **metrics, "seconds": row.seconds, "usd": float(row.usd), "nodes": row.nodes}


def found(connection: Connection, name: str, metric: str, by: Sequence[str]) -> Results:
    """From a server."""
    told = connection.get(f"/v1/results/{quote(name, safe='')}", timeout_s=60.0)
    return read(name, [wire.from_plain(ResultRow, row) for row in told["rows"]], metric, by)


def read(name: str, rows: Sequence[ResultRow], metric: str = "", by: Sequence[str] = ()) -> Results:
    """`metric` with `-` in front: lower is better. Raises NotFound for a metric or a parameter that no run has."""
    chosen = metric.removeprefix("-") or _telling(rows)
    if metric:
        _check(chosen, {known for row in rows for known in row.metrics}, f"metric that a run of `{name}` has reported")
    known = parameters(rows)
    for one in by:
        _check(one, {*known, *(each for row in rows for each in row.values)}, f"parameter of `{name}`")
    lower = metric.startswith("-") or bool(LOWER_IS_BETTER.search(chosen))
    return Results(name, tuple(rows), chosen, lower, tuple(by) or groupable(rows))


def parameters(rows: Sequence[ResultRow]) -> list[str]:
    """Those in which runs differ, in the order of the matrix."""
    seen: dict[str, set[str]] = {}
    for row in rows:
        for name, text in row.values.items():
            seen.setdefault(name, set()).add(text)
    everywhere = {name for name in seen if all(name in row.values for row in rows)}
    return [name for name, texts in seen.items() if len(texts) > 1 or name not in everywhere] or list(seen)


def groupable(rows: Sequence[ResultRow]) -> tuple[str, ...]:
    """What groups differ in, if nobody says: everything but what only repeats a training, such as its seed."""
    known = parameters(rows)
    return tuple(name for name in known if not _REPEATS.fullmatch(name)) or tuple(known)


def _telling(rows: Sequence[ResultRow]) -> str:
    """The metric that most runs have reported, the last one of them; empty: there is none."""
    counts = Counter(name for row in rows for name in row.metrics if not _NOT_TELLING.fullmatch(name))
    most = max(counts.values(), default=0)
    return next((name for name in reversed(counts) if counts[name] == most), "")


def _check(name: str, known: set[str], what: str) -> None:
    if name not in known:
        near = nearest(name, known)
        others = ", ".join(f"`{one}`" for one in sorted(known)[:8])
        hint = f"did you mean `{near}`?" if near else f"there are {others}" if others else "none was found so far"
        raise NotFound(f"`{name}` is not a {what}", hint=hint, cause=Cause.NO_SUCH_METRIC)


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Scaling:
    """Runs with the same number of nodes, compared with those that have the fewest."""

    nodes: int
    seconds: float  # per run
    usd: float
    faster: float
    efficiency: float


def number(text: str) -> float:
    """Infinite for what is none, so that it sorts last."""
    try:
        return float(text)
    except ValueError:
        return math.inf


def numeric(results: Results) -> str:
    """The parameter to draw against: the first one whose values are numbers."""
    for name in results.by:
        if all(math.isfinite(number(row.values.get(name, ""))) for row in results.rows):
            return name
    hint = f"stoker results {results.name} --plot box"
    raise BadInput("no parameter has only numbers to draw against", hint=hint, cause=Cause.NOTHING_TO_PLOT)


def points(results: Results) -> list[tuple[float, float, ResultRow]]:
    """A parameter and the metric of each run."""
    name = numeric(results)
    found = [
        (number(row.values[name]), figure, row) for row in results.rows if (figure := results.figure(row)) is not None
    ]
    return _some(found, results)


def scaling(results: Results) -> list[Scaling]:
    """By number of nodes; of runs that succeeded."""
    by_nodes: dict[int, list[ResultRow]] = {}
    for row in results.rows:
        if row.state is RunState.SUCCEEDED and row.seconds:
            by_nodes.setdefault(row.nodes, []).append(row)
    _some(list(by_nodes), results)
    fewest = min(by_nodes)
    seconds = {nodes: statistics.fmean(row.seconds for row in rows) for nodes, rows in by_nodes.items()}
    found = []
    for nodes in sorted(by_nodes):
        usd = statistics.fmean(float(row.usd) for row in by_nodes[nodes])
        faster = seconds[fewest] / seconds[nodes]
        found.append(Scaling(nodes, seconds[nodes], usd, faster, faster * fewest / nodes))
    return found


def front(results: Results) -> tuple[str, list[tuple[float, float, ResultRow, bool]]]:
    """By cost, or by time where nothing costs: what it took, the metric, the run, and whether no other one took less
    and is better."""
    axis = "usd" if any(row.usd for row in results.rows) else "seconds"
    found = [
        (float(row.usd) if axis == "usd" else row.seconds, figure, row)
        for row in results.rows
        if (figure := results.figure(row)) is not None
    ]
    _some(found, results)
    best, marked = math.inf, []
    for took, figure, row in sorted(found, key=lambda one: (one[0], results.rank(one[1]))):
        rank = results.rank(figure)
        marked.append((took, figure, row, rank < best))
        best = min(best, rank)
    return axis, marked


def _some(found: list[T], results: Results) -> list[T]:
    if not found:
        what = (
            f"no run of `{results.name}` has reported {f'`{results.metric}`' if results.metric else 'a metric'} so far"
        )
        raise BadInput(what, hint=f"stoker results {results.name}", cause=Cause.NOTHING_TO_PLOT)
    return found
