"""`metrics.csv` as Lightning's CSVLogger writes it: rows are appended; for a new column all of it is written anew."""

from __future__ import annotations

import csv
import math
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from stoker.agent.points import LONGEST_NAME, Point, whole
from stoker.agent.tree import walk

NAME = "metrics.csv"
EVERY_S = 1.0
MOST_BYTES = 64 << 20  # of one file: a larger one is not for people
MOST_FOLDERS = 200
_COUNTS = ("step", "epoch")


class CsvFile:
    """One file, from the row after the last that was read. `skip` rows were read by an earlier attempt."""

    def __init__(self, path: Path, skip: int = 0) -> None:
        self._path = path
        self._rows = skip
        self._seen = (0, 0.0)  # size and time of change

    def fresh(self) -> Iterator[dict[str, float]]:
        """Whole rows that are new, as numbers by column."""
        try:
            now = self._path.stat()
            if (now.st_size, now.st_mtime) == self._seen or now.st_size > MOST_BYTES:
                return
            self._seen = (now.st_size, now.st_mtime)
            text = self._path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return
        lines = text[: text.rfind("\n") + 1].splitlines()
        if not lines or not set(_COUNTS) & set(columns := next(csv.reader(lines[:1]), [])):
            return
        rows = lines[1:]
        if len(rows) < self._rows:  # another training has begun the file anew
            self._rows = 0
        fresh, self._rows = rows[self._rows :], len(rows)
        for row in csv.reader(fresh):
            if len(row) == len(columns):
                yield dict(_numbers(zip(columns, row, strict=True)))


class CsvPoints:
    """Every `metrics.csv` below the outputs, and in Lightning's own folders in the working directory. What was there
    before the script began is not of this run. `read` names files in the outputs that an earlier attempt wrote."""

    name = NAME
    behind = guesses = False

    def __init__(self, work: Path, outputs: Path, rank: int, read: Iterable[str] = ()) -> None:
        self._work = work
        self._outputs = outputs
        self._rank = rank
        self._due = 0.0
        known = [*self._lying(), *(outputs / one for one in read if one.endswith(NAME))]
        self._files = {path: CsvFile(path, _count(path)) for path in known}

    def fresh(self, *, final: bool) -> Iterator[Point]:
        start = time.monotonic()
        if start < self._due and not final:
            return
        below = walk(str(self._outputs), lambda _path, _error: None)
        brought = [self._outputs / path for path, entry in below if entry and entry.name == NAME]
        for path in dict.fromkeys((*self._lying(), *brought)):
            for row in self._files.setdefault(path, CsvFile(path)).fresh():
                step = next((row.pop(name) for name in _COUNTS if name in row), None)
                values = {name: one if math.isfinite(one) else None for name, one in row.items()}
                if set(values) - {"epoch"}:
                    yield Point(time.time(), self._rank, None if step is None else whole(step), values)
        now = time.monotonic()
        self._due = now + max(EVERY_S, 20 * (now - start))

    def _lying(self) -> list[Path]:
        """In `<logs>/version_N/` and `<logs>/<name>/version_N/` of the working directory, but for the outputs."""
        found: list[Path] = []
        for logs in _folders(self._work):
            if logs == self._outputs:
                continue
            for inner in _folders(logs):
                if inner.name.startswith("version_"):
                    found.append(inner / NAME)
                elif logs.name.endswith("logs"):
                    found += [one / NAME for one in _folders(inner) if one.name.startswith("version_")]
        return [path for path in found if path.is_file()]


def _folders(path: Path) -> list[Path]:
    try:
        with os.scandir(path) as entries:
            names = [one.name for one in entries if one.is_dir(follow_symlinks=False) and not one.name.startswith(".")]
    except OSError:
        return []
    return [path / name for name in sorted(names)[:MOST_FOLDERS]]


def _numbers(cells: Iterable[tuple[str, str]]) -> Iterator[tuple[str, float]]:
    for name, cell in cells:
        if cell.strip() and name and len(name) <= LONGEST_NAME:
            try:
                yield name, float(cell)
            except ValueError:
                continue


def _count(path: Path) -> int:
    """The rows of a file as it is now."""
    try:
        return max(path.read_bytes().count(b"\n") - 1, 0)
    except OSError:
        return 0
