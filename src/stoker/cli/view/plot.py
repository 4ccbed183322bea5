"""A curve in the terminal, drawn with braille characters: 2 by 4 dots in each cell."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # by row and column within a cell
_BLANK = 0x2800


@dataclass(frozen=True, slots=True)
class Span:
    low: float
    high: float

    def place(self, value: float, steps: int) -> int:
        """Which of `steps` positions from 0 the value falls on; the middle one if the span is empty."""
        length = self.high / 2 - self.low / 2  # halved, so that the widest span does not overflow
        share = (value / 2 - self.low / 2) / length if length else 0.5
        return min(steps - 1, max(0, round(share * (steps - 1))))

    def row(self, value: float, rows: int) -> int:
        """The same, counted from the top, as rows of a terminal are."""
        return rows - 1 - self.place(value, rows)

    @property
    def middle(self) -> float:
        return self.low / 2 + self.high / 2


def plot(series: Iterable[tuple[float | None, float]], width: int, height: int, axis: str = "step") -> list[str]:
    """The lines of a chart of steps and values. If some points have no step, points are counted instead."""
    points = list(series)
    stepped = all(step is not None and math.isfinite(step) for step, _ in points)
    numbered = [(step if stepped and step is not None else index, value) for index, (step, value) in enumerate(points)]
    finite = sorted(point for point in numbered if math.isfinite(point[1]))
    if not finite:
        return [f"nothing to plot: {'no values' if not points else f'all {len(points):,} values are NaN or infinite'}"]
    x = Span(finite[0][0], finite[-1][0])
    y = Span(min(value for _, value in finite), max(value for _, value in finite))
    values = (y.high, y.middle, y.low) if y.high > y.low else (y.high,)
    marks = labels(values)
    margin = max(map(len, marks))
    across, down = max(8, width - margin - 2), max(3, height)
    named = {y.row(value, 4 * down) // 4: mark for value, mark in zip(values, marks, strict=True)}
    rows = _draw(finite, x, y, across, down)
    edges = [f"{named.get(at, ''):>{margin}} {'┤' if at in named else '│'}" for at in range(down)]
    lines = [f"{edge}{row}".rstrip() for edge, row in zip(edges, rows, strict=True)]
    lines.append(" " * (margin + 1) + "└" + "─" * across)
    lines.append(" " * (margin + 2) + _below(x, axis if stepped else "points", across))
    dropped = len(points) - len(finite)
    if dropped:
        lines.append(" " * (margin + 2) + f"{dropped:,} of {len(points):,} values are NaN or infinite")
    return lines


def labels(values: Sequence[float]) -> list[str]:
    """The values with as few digits as distinguish them, at least four; whole numbers in full."""
    if all(value == int(value) and abs(value) < 1e9 for value in values):
        return [f"{value:.0f}" for value in values]
    for digits in range(4, 18):
        texts = [f"{value:.{digits}g}" for value in values]
        if len(set(texts)) == len(set(values)):
            break
    return texts


def _below(x: Span, axis: str, across: int) -> str:
    ends = labels((x.low, x.high)) if x.high > x.low else labels((x.low,))
    if len(ends) == 1:
        return f"{axis} {ends[0]}".center(across).rstrip()
    space = across - len(ends[0]) - len(ends[1])
    return ends[0] + (axis.center(space) if space > len(axis) else " " * max(1, space)) + ends[1]


def _draw(points: Sequence[tuple[float, float]], x: Span, y: Span, across: int, down: int) -> list[str]:
    """One vertical stroke per column of dots contains all its points; neighbouring strokes are joined."""
    dots = [bytearray(2 * across) for _ in range(4 * down)]
    before: tuple[int, int] | None = None
    for column, first, least, most, last in _strokes(points, x, y, 2 * across, 4 * down):
        for row in range(least, most + 1):
            dots[row][column] = 1
        if before:
            _join(dots, before, (column, first))
        before = (column, last)
    return ["".join(_cell(dots, row, column) for column in range(across)) for row in range(down)]


def _strokes(
    points: Sequence[tuple[float, float]], x: Span, y: Span, columns: int, rows: int
) -> list[tuple[int, int, int, int, int]]:
    """For each column with points: the column, then the rows of its first, topmost, lowest and last point."""
    strokes: list[tuple[int, int, int, int, int]] = []
    for step, value in points:
        column, row = x.place(step, columns), y.row(value, rows)
        if strokes and strokes[-1][0] == column:
            _, first, least, most, _ = strokes[-1]
            strokes[-1] = (column, first, min(least, row), max(most, row), row)
        else:
            strokes.append((column, row, row, row, row))
    return strokes


def _join(dots: list[bytearray], start: tuple[int, int], end: tuple[int, int]) -> None:
    steps = max(abs(end[0] - start[0]), abs(end[1] - start[1]))
    for at in range(1, steps):
        column = start[0] + round((end[0] - start[0]) * at / steps)
        row = start[1] + round((end[1] - start[1]) * at / steps)
        dots[row][column] = 1


def _cell(dots: list[bytearray], row: int, column: int) -> str:
    bits = 0
    for down, pair in enumerate(_DOTS):
        line = dots[4 * row + down]
        for right, bit in enumerate(pair):
            bits |= bit if line[2 * column + right] else 0
    return chr(_BLANK + bits) if bits else " "
