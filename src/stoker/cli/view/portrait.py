"""A run as text: the lines of `stoker show`, and curves of its metrics. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from pathlib import Path

from stoker.cli.view import words
from stoker.cli.view.summary import seen_from, settings, variables
from stoker.cli.view.terminal import one_line
from stoker.cli.view.words import ATTEMPT_STYLES, STYLES, Column, Paint, TableCell, meter_line, pairs, spent_by, table
from stoker.client.report.spelling import usd
from stoker.client.software.packages import PYTHON
from stoker.model.run.report import DataFigures
from stoker.model.run.run import Attempt, AttemptState, Event, Member, Run, RunState
from stoker.model.snapshot import Entry

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


_MOST_OUTPUTS = 20
_MOST_EVENTS = 30


def portrait(
    run: Run,
    events: Sequence[Event],
    outputs: Sequence[Entry],
    here: Path,
    now: datetime,
    width: int,
    paint: Paint,
) -> list[str]:
    lines = [_title(run, now, paint), *pairs(_facts(run, here, now), paint)]
    for title, rows in (
        ("attempts", _attempts(run, now, width, paint)),
        ("timeline", _timeline(events, now, width, paint)),
        ("metrics", metric_table(run, width - 2, paint)),
        ("outputs", _outputs(outputs, width, paint)),
    ):
        lines += ["", paint(title, "strong"), *(f"  {row}" for row in rows)] if rows else []
    return lines


def _title(run: Run, now: datetime, paint: Paint) -> str:
    parts = [paint(str(run.state), STYLES[run.state])]
    if run.exit_code is not None and run.state is RunState.FAILED:
        signal = words.signal_name(run.exit_code)
        parts.append(f"exit code {run.exit_code}" + (f" ({signal})" if signal else ""))
    if run.started_at:
        took = words.duration(((run.ended_at or now) - run.started_at).total_seconds())
        during = "for" if run.ended_at is None else "in" if run.state is RunState.SUCCEEDED else "after"
        parts.append(f"{during} {took}")
    return f"{paint(run.name, 'strong')} {' '.join(parts)}" + (f": {one_line(run.reason)}" if run.reason else "")


def _checkpoint(run: Run) -> str:
    if not run.checkpoint_files:
        return ""
    amount = f"{words.count(run.checkpoint_files, 'file')}, {words.size_text(run.checkpoint_bytes)}"
    return amount if run.landed and run.brings_checkpoint else f"{amount}: stoker fetch {run.name} --checkpoints"


def _facts(run: Run, here: Path, now: datetime) -> list[tuple[str, str]]:
    by = f" by {run.person}" if run.person else ""
    landed = f" in {seen_from(run.landed, here)}" if run.landed else ""
    amount = f"{words.count(run.output_files, 'file')}, {words.size_text(run.output_bytes)}" if run.output_files else ""
    return [
        ("command", run.job.run),
        ("trial", ", ".join(f"{name}={text}" for name, text in run.trial.values.items()) if run.trial else ""),
        ("on", f"{run.cluster} ({run.job.on})" if run.cluster else run.job.on),
        ("submitted", f"{words.clock(run.submitted_at, now)}{by}, {words.age(run.submitted_at, now)} ago"),
        ("rerun of", run.rerun_of),
        ("resumes" if run.resumes else "starts from", _start(run)),
        ("code", _code(run)),
        ("software", _software(run)),
        ("environment", run.environment),
        ("system", one_line(", ".join(f"{name} {value}" for name, value in run.system.items()))),
        ("data", "\n".join(_data(run))),
        ("cost", _cost(run, now)),
        ("outputs", f"{amount}{landed}" if amount else ""),
        ("checkpoint", _checkpoint(run)),
        ("stray files", f"{', '.join(run.stray)}: stoker fetch {run.name} --stray" if run.stray_files else ""),
        ("node", _kept(run, now)),
        ("closed", run.alone),
        ("problem", f"outputs could not be downloaded: {run.land_problem}" if run.land_problem else ""),
        ("from shell", variables(run.here)),
        ("secrets", ", ".join(run.job.secrets)),
        ("settings", settings(run.job)),
    ]


def _start(run: Run) -> str:
    if run.start is None:
        return ""
    at = f" (step {run.start.step:g})" if run.start.step is not None else ""
    return f"the last checkpoint of {run.start.name}{at}"


def _kept(run: Run, now: datetime) -> str:
    if run.kept_until is None:
        return ""
    left = words.duration((run.kept_until - now).total_seconds())
    return (
        f"kept for {left}: inspect it with stoker exec {run.name} -- COMMAND, release it with stoker release {run.name}"
    )


def _cost(run: Run, now: datetime) -> str:
    if not run.spells:
        return ""
    so_far = meter_line(run, now) or usd(spent_by(run, now))
    return f"{so_far}; details: stoker receipt {run.name}"


def _data(run: Run) -> list[str]:
    """Where each input is, and how the newest attempt read it."""
    lines = [f"{name}: {where}" for name, where in run.data.items()]
    for name, order in run.inputs.items():
        seen = run.data_figures.get(name)
        lines.append(f"{name}: {order.label}" + (f", {data_figures(seen)}" if seen and seen.way else ""))
    return lines


def data_figures(seen: DataFigures) -> str:
    """How an input was read: how much from where, how fast, and the share of time spent waiting for it."""
    if seen.way == "link":
        parts = [f"linked, {words.count(seen.files, 'file')}, {words.size_text(seen.size_bytes)}"]
    else:
        how = {"download": "downloaded", "mount": "mounted"}.get(seen.way, seen.way)
        rate = seen.read_bytes / seen.stage_s / 1e9 if seen.stage_s and seen.way == "download" else 0.0
        speed = f" at {rate:.2f} GB/s" if rate >= 0.005 else ""
        read, size = words.size_text(seen.read_bytes), words.size_text(seen.size_bytes)
        parts = [f"{how}, {read} of {size} read from the store{speed}"]
    if seen.cached_bytes:
        parts.append(f"{words.size_text(seen.cached_bytes)} from the cache")
    return f"{', '.join(parts)}; {100 * seen.wait_share:.1f} % of the time spent waiting for it"


def _code(run: Run) -> str:
    if run.git is None:
        return f"snapshot {run.snapshot[:12]}"
    branch = f" on {run.git.branch}" if run.git.branch else ""
    return f"snapshot {run.snapshot[:12]}, git {run.git.commit[:12]}{branch}{', with changes' if run.git.dirty else ''}"


def _software(run: Run) -> str:
    """The environment that was used; before that is known, the one that was requested."""
    environment, packages = run.job.environment, dict(run.packages)
    named = environment.requirements or environment.image or environment.dockerfile
    version = packages.pop(PYTHON, "")
    there = f"{words.count(len(packages), 'package')}" if packages else ""
    if run.software and version:
        where = f" from {named}" if named else ""
        return f"Python {version} on the node with {there or 'no packages'}{where}"
    if run.software:
        wanted = f"{named}" if named else f"{words.count(run.software.packages, 'package')}"
        return f"Python {run.software.python} with {wanted}, to be installed on the node"
    if named:
        return ", ".join(one for one in (named, run.image, there) if one)
    return f"{environment.python or run.python}" + (f", {there}" if there else "")


def _attempts(run: Run, now: datetime, width: int, paint: Paint) -> list[str]:
    columns = (
        Column("#", right=True),
        Column("STATE"),
        Column("ASKED"),
        Column("WAITED", right=True),
        Column("TIME", right=True),
        Column("EXIT", right=True),
        Column("", least=16),
    )
    rows: list[list[TableCell | str]] = []
    for refused, some in groupby(run.attempts, lambda one: bool(one.trouble) and one.started_at is None):
        tries = list(some)
        rows += [_refused(tries, now)] if refused else [row for one in tries for row in _rows(one, now)]
    return table(columns, rows, width - 2, paint) if rows else []


def _refused(tries: Sequence[Attempt], now: datetime) -> list[TableCell | str]:
    """A run may wait for a machine for hours, with an attempt every few minutes: they are one row."""
    first, last = tries[0], tries[-1]
    number, told = str(first.number), last.message
    if first is not last:
        number = f"{first.number}-{last.number}"
        told = f"{len(tries)} tries, the last at {words.clock(last.asked_at, now)}: {told}"
    state = TableCell("refused", ATTEMPT_STYLES[last.state])
    return [number, state, words.clock(first.asked_at, now), "", "", "", told]


def _rows(attempt: Attempt, now: datetime) -> list[list[TableCell | str]]:
    """Of a gang, also each of its other nodes."""
    whole, *peers = [_attempt(one, now) for one in attempt.members]
    return [whole, *([f"node {one.node}", *cells[1:]] for one, cells in zip(attempt.peers, peers, strict=True))]


def _attempt(one: Member, now: datetime) -> list[TableCell | str]:
    waited = words.duration((one.started_at - one.asked_at).total_seconds()) if one.started_at else ""
    took = words.duration(((one.ended_at or now) - one.started_at).total_seconds()) if one.started_at else ""
    return [
        str(one.number),
        TableCell(str(_how(one)), ATTEMPT_STYLES[one.state]),
        words.clock(one.asked_at, now),
        waited,
        took,
        "" if one.exit_code is None else str(one.exit_code),
        one.message or (_fewer(one) if isinstance(one, Attempt) else ""),
    ]


def _fewer(attempt: Attempt) -> str:
    return f"{words.count(len(attempt.members), 'node')}: {attempt.fewer}" if attempt.fewer else ""


def _how(one: Member) -> str:
    """What became of it. How the first node of a gang ended says less than what became of the gang."""
    whole = isinstance(one, Attempt) and one.peers and one.state is not AttemptState.ENDED
    return one.state if whole else one.outcome or one.state


def _timeline(events: Sequence[Event], now: datetime, width: int, paint: Paint) -> list[str]:
    """The first and the newest, if there are very many."""
    shown = list(events)
    if len(shown) > _MOST_EVENTS:
        half = _MOST_EVENTS // 2
        gap = Event(shown[half].at, "", f"… {len(shown) - 2 * half:,} more …")
        shown = [*shown[:half], gap, *shown[-half:]]
    columns = (Column("AT"), Column("AFTER", right=True), Column("WHAT", least=16))
    start = shown[0].at if shown else now
    rows = [[words.clock(one.at, now), words.duration((one.at - start).total_seconds()), one.text] for one in shown]
    return table(columns, rows, width - 2, paint) if rows else []


def metric_table(run: Run, width: int, paint: Paint) -> list[str]:
    columns = (
        Column("NAME", least=12),
        Column("LAST", right=True),
        Column("LEAST", right=True),
        Column("MOST", right=True),
        Column("STEP", right=True),
        Column("POINTS", right=True),
    )
    rows = [
        [
            name,
            *map(words.number, (metric.last, metric.least, metric.most)),
            "" if metric.step is None else words.number(metric.step),
            f"{metric.count:,}",
        ]
        for name, metric in run.metrics.items()
    ]
    return table(columns, rows, width, paint) if rows else []


def _outputs(outputs: Sequence[Entry], width: int, paint: Paint) -> list[str]:
    columns = (Column("FILE", least=20), Column("SIZE", right=True))
    rows = [[entry.path, words.size_text(entry.size_bytes)] for entry in outputs[:_MOST_OUTPUTS]]
    left = len(outputs) - len(rows)
    return table(columns, rows, width - 2, paint) + ([f"… and {left:,} more"] if left else []) if rows else []
