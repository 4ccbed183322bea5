"""Results as text: dots, boxes and bars for a terminal. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from stoker.cli.view.portrait import Span, labels
from stoker.client.sweeps.results import Results, front, number, scaling

_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # by row and column within a cell
_BLANK = 0x2800
_WIDE = 60


def scatter(points: Sequence[tuple[float, float]], x: str, y: str, width: int, height: int = 16) -> list[str]:
    """The exponent is drawn where values span factors of a thousand."""
    log = all(one > 0 for one, _ in points) and max(one for one, _ in points) > 1000 * min(one for one, _ in points)
    placed = [(math.log10(one) if log else one, two) for one, two in points]
    across = Span(min(one for one, _ in placed), max(one for one, _ in placed))
    up = Span(min(two for _, two in placed), max(two for _, two in placed))
    marks = labels((up.high, up.low)) if up.high > up.low else labels((up.high,)) * 2
    margin = max(map(len, marks))
    columns = max(10, min(width - margin - 2, 100))
    cells = [[0] * columns for _ in range(height)]
    for one, two in placed:
        column, row = across.place(one, 2 * columns), up.row(two, 4 * height)
        cells[row // 4][column // 2] |= _DOTS[row % 4][column % 2]
    lines = [f"{y} by {x}{' (log)' if log else ''}"]
    for at, line in enumerate(cells):
        mark = marks[0] if at == 0 else marks[1] if at == height - 1 else ""
        drawn = "".join(chr(_BLANK + one) if one else " " for one in line)
        lines.append(f"{mark:>{margin}} {'┤' if mark else '│'}{drawn}".rstrip())
    ends = [f"{10**one if log else one:.4g}" for one in (across.low, across.high)]
    lines.append(" " * (margin + 1) + "└" + "─" * columns)
    return [*lines, " " * (margin + 2) + ends[0] + ends[1].rjust(columns - len(ends[0]))]


def boxes(results: Results, width: int) -> list[str]:
    """For each group: from the least to the most, the middle half, and the median."""
    groups = [one for one in results.groups if one.figures]
    names = [", ".join(one.values.values()) or "all" for one in groups]
    margin = min(max(map(len, names)), 40)
    columns = max(10, min(width - margin - 30, _WIDE))
    figures = [figure for one in groups for figure in one.figures]
    span = Span(min(figures), max(figures))
    lines = [f"{results.metric} by {', '.join(results.by)}"]
    for name, one in zip(names, groups, strict=True):
        found = sorted(one.figures)
        quarters = statistics.quantiles(found, n=4, method="inclusive") if len(found) > 1 else [found[0]] * 3
        places = [span.place(value, columns) for value in (found[0], *quarters, found[-1])]
        lines.append(f"{name[:margin]:>{margin}} {_box(places, columns)} {quarters[1]:.4g} (n={len(found)})")
    return [*lines, " " * (margin + 1) + f"{span.low:.4g}" + f"{span.high:.4g}".rjust(columns - len(f"{span.low:.4g}"))]


def _box(places: Sequence[int], columns: int) -> str:
    least, low, middle, high, most = places
    row = [" "] * columns
    row[least : most + 1] = "─" * (most - least + 1)
    row[low : high + 1] = "█" * (high - low + 1)
    row[middle] = "┃"
    return "".join(row)


def bars(results: Results, width: int) -> list[str]:
    """How much faster more nodes are, against twice the nodes being twice as fast."""
    rows = scaling(results)
    columns = max(8, min(width - 52, 40))
    lines = [f"{'NODES':>5}  {'TIME':>9}  {'SPEED-UP':>8}  {'EFFICIENCY':>10}  {'COST':>9}"]
    for one in rows:
        bar = "█" * round(columns * min(one.efficiency, 1.0))
        cost = f"${one.usd:.4g}"
        lines.append(
            f"{one.nodes:>5}  {one.seconds:>8.1f}s  {one.faster:>7.2f}×  {one.efficiency:>10.0%}  {cost:>9}  {bar}"
        )
    return lines


def parallel(results: Results, width: int) -> list[str]:
    """A column for each parameter, in which each run's value has its place; the best run first."""
    runs = sorted(
        (row for row in results.rows if results.figure(row) is not None),
        key=lambda row: results.rank(results.figure(row)),
    )
    columns = max(8, min(24, (width - 30) // max(len(results.by), 1) - 2))
    lines = ["  ".join([*(name[:columns].ljust(columns) for name in results.by), results.metric])]
    for row in runs[:30]:
        cells = [_place(results, name, row.values.get(name, ""), columns) for name in results.by]
        lines.append("  ".join([*cells, f"{results.figure(row):.4g}  {row.name}"]))
    return lines


def _place(results: Results, name: str, text: str, columns: int) -> str:
    texts = sorted({row.values.get(name, "") for row in results.rows}, key=lambda one: (number(one), one))
    at = Span(0, len(texts) - 1).place(texts.index(text), columns - len(text[:8]))
    return ("·" * at + text[:8]).ljust(columns, "·")


def pareto(results: Results, width: int) -> list[str]:
    """The runs that no other one beats in both cost and metric."""
    axis, points = front(results)
    every = [(x, y) for x, y, _, _ in points]
    lines = scatter(every, axis, results.metric, width)
    lines += ["", f"no run is both cheaper in {axis} and better than these:"]
    return lines + [f"  {row.name}  {axis} {x:.4g}  {results.metric} {y:.4g}" for x, y, row, best in points if best]
