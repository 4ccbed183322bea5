"""What plots of results show: points, how work scales with nodes, and the runs that no other one beats. Pure."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import TypeVar

from stoker.client.sweeps.results import Results
from stoker.errors import BadInput
from stoker.model.cause import Cause
from stoker.model.run.run import RunState
from stoker.model.run.sweep import ResultRow

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
