"""Tables in plain text: columns are aligned, and the least important text is cut on a narrow terminal; and the table of
sizes of `stoker ps --sizes` and `stoker prune`."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from stoker.cli.view import terminal, words
from stoker.cli.view.safetext import one_line
from stoker.cli.view.terminal import paint_data, say, show
from stoker.cli.view.words import STYLES
from stoker.model.run.pruning import RunSizes, Sizes
from stoker.model.run.run import Run

GAP = "  "
Paint = Callable[[str, str], str]  # text and the name of a style to text


@dataclass(frozen=True, slots=True)
class Column:
    title: str
    right: bool = False
    least: int = 0  # minimum width; 0: never shrinks


@dataclass(frozen=True, slots=True)
class TableCell:
    text: str
    style: str = ""


def table(columns: Sequence[Column], rows: Sequence[Sequence[TableCell | str]], width: int, paint: Paint) -> list[str]:
    """The lines. A column that is empty in every row is omitted."""
    cells = [[cell if isinstance(cell, TableCell) else TableCell(cell) for cell in row] for row in rows]
    kept = [index for index in range(len(columns)) if any(row[index].text for row in cells)]
    columns = [columns[index] for index in kept]
    cells = [[TableCell(one_line(row[index].text), row[index].style) for index in kept] for row in cells]
    wanted = [
        max(map(cells_wide, [column.title, *(row[at].text for row in cells)])) for at, column in enumerate(columns)
    ]
    widths = _shrunk(columns, wanted, width)
    head = [TableCell(column.title, "faint") for column in columns]
    return [_line(columns, row, widths, paint) for row in [head, *cells]]


def pairs(rows: Sequence[tuple[str, str]], paint: Paint, indent: str = "  ") -> list[str]:
    """Names and values in two columns; rows without a value are omitted, further lines of a value are indented."""
    kept = [(name, value) for name, value in rows if value]
    widest = max((cells_wide(name) for name, _ in kept), default=0)
    lines = []
    for name, value in kept:
        first, *more = value.splitlines()
        lines.append(f"{indent}{paint(name, 'faint')}{' ' * (widest - cells_wide(name))}{GAP}{first}")
        lines += [f"{indent}{' ' * widest}{GAP}{line}" for line in more]
    return lines


def cells_wide(text: str) -> int:
    """The columns of a terminal that the text occupies: some characters take two, some none."""
    if text.isascii():
        return len(text)
    return sum(_char_wide(char) for char in text)


def clipped(text: str, width: int) -> str:
    """The text in at most `width` columns, with an ellipsis where it was cut."""
    if cells_wide(text) <= width:
        return text
    kept, used = [], 0
    for char in text:
        used += _char_wide(char)
        if used > width - 1:
            break
        kept.append(char)
    return "".join(kept) + "…"


def _char_wide(char: str) -> int:
    if unicodedata.combining(char) or unicodedata.category(char) in ("Cf", "Me", "Mn"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def _shrunk(columns: Sequence[Column], wanted: list[int], width: int) -> list[int]:
    """Shrinks the widest column that may shrink, repeatedly, until the table fits."""
    widths = list(wanted)
    excess = sum(widths) + len(GAP) * (len(widths) - 1) - width
    while excess > 0:
        able = [at for at, column in enumerate(columns) if column.least and widths[at] > column.least]
        if not able:
            break
        widest = max(able, key=lambda at: widths[at])
        others = [widths[at] for at in able if at != widest and widths[at] < widths[widest]]
        floor = max([columns[widest].least, *others])
        taken = min(excess, widths[widest] - floor) or 1
        widths[widest] -= taken
        excess -= taken
    return widths


def _line(columns: Sequence[Column], row: Sequence[TableCell], widths: Sequence[int], paint: Paint) -> str:
    parts = []
    for column, cell, width in zip(columns, row, widths, strict=True):
        text = clipped(cell.text, width)
        space = " " * (width - cells_wide(text))
        painted = paint(text, cell.style) if cell.style and text else text
        parts.append(space + painted if column.right else painted + space)
    return GAP.join(parts).rstrip()


_COLUMNS = (
    Column("RUN", least=12),
    Column("STATE"),
    Column("AGE", right=True),
    Column("CODE", right=True),
    Column("CHECKPOINTS", right=True),
    Column("OUTPUTS", right=True),
    Column("LOGS", right=True),
    Column("STORED", right=True),
    Column("DOWNLOADED", right=True),
    Column("STORE", least=6),
)


def tell(runs: Sequence[Run], sizes: Sizes, now: datetime) -> None:
    rows = [_row(run, sizes.runs[run.name], now) for run in runs if run.name in sizes.runs]
    for line in table(_COLUMNS, rows, terminal.width(), paint_data):
        show(line)
    say(f"{words.size(sizes.total)} stored in total; code shared by several runs is counted once")
    if sizes.home:
        parts = ", ".join(f"{name} {words.size(size)}" for name, size in sizes.home.items())
        say(f"also in Stoker's folder: {parts}")
    for name, one in sizes.runs.items():
        if one.trouble:
            say(f"{name}: size in its store unknown: {one_line(one.trouble)}")


def _row(run: Run, sizes: RunSizes, now: datetime) -> list[TableCell | str]:
    stored = [sizes.code, sizes.checkpoints, sizes.outputs, sizes.logs, sizes.stored]
    shown = ["?" if sizes.trouble else words.size(one) if one else "" for one in stored]
    here = words.size(sizes.here) if sizes.here else ""
    state = TableCell(str(run.state), STYLES[run.state])
    return [run.name, state, words.age(run.submitted_at, now), *shown, here, run.store]
