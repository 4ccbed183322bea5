"""Tables in plain text: columns line up, the least important text gives way where the terminal is narrow."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stoker.cli.view.safetext import one_line

GAP = "  "
Paint = Callable[[str, str], str]  # text and a style's name to text


@dataclass(frozen=True, slots=True)
class Column:
    title: str
    right: bool = False
    least: int = 0  # how far it may shrink; 0: not at all


@dataclass(frozen=True, slots=True)
class Cell:
    text: str
    style: str = ""


def table(columns: Sequence[Column], rows: Sequence[Sequence[Cell | str]], width: int, paint: Paint) -> list[str]:
    """The lines. A column that is empty in every row is left out."""
    cells = [[cell if isinstance(cell, Cell) else Cell(cell) for cell in row] for row in rows]
    kept = [index for index in range(len(columns)) if any(row[index].text for row in cells)]
    columns = [columns[index] for index in kept]
    cells = [[Cell(one_line(row[index].text), row[index].style) for index in kept] for row in cells]
    wanted = [
        max(map(cells_wide, [column.title, *(row[at].text for row in cells)])) for at, column in enumerate(columns)
    ]
    widths = _shrunk(columns, wanted, width)
    head = [Cell(column.title, "faint") for column in columns]
    return [_line(columns, row, widths, paint) for row in [head, *cells]]


def pairs(rows: Sequence[tuple[str, str]], paint: Paint, indent: str = "  ") -> list[str]:
    """Names and values below each other; rows without a value are left out, further lines of a value line up."""
    kept = [(name, value) for name, value in rows if value]
    widest = max((cells_wide(name) for name, _ in kept), default=0)
    lines = []
    for name, value in kept:
        first, *more = value.splitlines()
        lines.append(f"{indent}{paint(name, 'faint')}{' ' * (widest - cells_wide(name))}{GAP}{first}")
        lines += [f"{indent}{' ' * widest}{GAP}{line}" for line in more]
    return lines


def cells_wide(text: str) -> int:
    """Columns of a terminal the text takes: some characters take two, some none."""
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
    """Takes what is too much from the widest column that may give, again and again."""
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


def _line(columns: Sequence[Column], row: Sequence[Cell], widths: Sequence[int], paint: Paint) -> str:
    parts = []
    for column, cell, width in zip(columns, row, widths, strict=True):
        text = clipped(cell.text, width)
        space = " " * (width - cells_wide(text))
        painted = paint(text, cell.style) if cell.style and text else text
        parts.append(space + painted if column.right else painted + space)
    return GAP.join(parts).rstrip()
