"""Metrics in files that a script appends to: JSON lines, and the tables of Lightning, Keras and YOLO."""

from __future__ import annotations

import csv
import math
import os
import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from stoker.agent.checkpoints.folders.files import walk
from stoker.agent.shipping.metrics.points import LONGEST_NAME, MetricPoint, printed, whole

_TABLES = ("metrics.csv", "results.csv", "history.csv", "log.csv", "training.log")
_LINES = re.compile(
    r"(metrics|stats|scalars|history|progress|logs?|train|training|eval|results)(_(logs?|metrics|stats))?\.jsonl"
    r"|(metrics|scalars|log)\.json|log\.txt"
)
EVERY_S = 1.0
MOST_BYTES = 64 << 20  # of one file: larger ones are ignored
MOST_FOLDERS = 200
_COUNTS = ("step", "epoch")


class TableFile:
    """One file, from the row after the last one read. An earlier attempt has read `skip` rows."""

    def __init__(self, path: Path, rank: int, skip: int = 0) -> None:
        self._path = path
        self._rank = rank
        self._rows = skip
        self._seen = (0, 0.0)  # size and modification time

    def fresh(self) -> Iterator[MetricPoint]:
        """New complete rows. A new column of a table rewrites its file."""
        try:
            now = self._path.stat()
            if (now.st_size, now.st_mtime) == self._seen or now.st_size > MOST_BYTES:
                return
            self._seen = (now.st_size, now.st_mtime)
            text = self._path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return
        lines = text[: text.rfind("\n") + 1].splitlines()
        yield from self._table(lines) if self._path.name in _TABLES else self._objects(lines)

    def _table(self, lines: list[str]) -> Iterator[MetricPoint]:
        columns = [one.strip() for one in next(csv.reader(lines[:1]), [])]
        if not set(_COUNTS) & set(columns):
            return
        for row in csv.reader(self._new(lines[1:])):
            if len(row) == len(columns):
                cells = dict(_numbers(zip(columns, row, strict=True)))
                step = next((cells.pop(name) for name in _COUNTS if name in cells), None)
                values = {name: one if math.isfinite(one) else None for name, one in cells.items()}
                yield MetricPoint(time.time(), self._rank, None if step is None else whole(step), values)

    def _objects(self, lines: list[str]) -> Iterator[MetricPoint]:
        for line in self._new(lines):
            if point := printed(line.encode(), time.time(), self._rank):
                yield point

    def _new(self, rows: list[str]) -> list[str]:
        if len(rows) < self._rows:  # another training has restarted the file
            self._rows = 0
        fresh, self._rows = rows[self._rows :], len(rows)
        return fresh


class TableFilePoints:
    """Every such file below the outputs and `others`, the folders of checkpoints, and in Lightning's and YOLO's own
    folders in the working directory. Files from before the script started do not belong to this run. `read` names files
    in the outputs that an earlier attempt wrote."""

    name = "CSV tables"
    behind = guesses = False

    def __init__(
        self, work: Path, outputs: Path, rank: int, read: Iterable[str] = (), others: Iterable[Path] = ()
    ) -> None:
        self._work = work
        self._outputs = outputs
        self._others = list(others)
        self._rank = rank
        self._due = 0.0
        known = [*self._lying(), *(outputs / one for one in read if _is_named(one.rpartition("/")[2]))]
        self._files = {path: TableFile(path, rank, _count(path)) for path in known}

    def fresh(self, *, final: bool) -> Iterator[MetricPoint]:
        start = time.monotonic()
        if start < self._due and not final:
            return
        for path in dict.fromkeys((*self._lying(), *_below(self._outputs))):
            for point in self._files.setdefault(path, TableFile(path, self._rank)).fresh():
                if set(point.values) - {"epoch"}:
                    yield point
        now = time.monotonic()
        self._due = now + max(EVERY_S, 20 * (now - start))

    def _lying(self) -> list[Path]:
        """In the folders of checkpoints, and in `<logs>/version_N/`, `<logs>/<name>/version_N/` and
        `runs/<task>/<name>/` of the working directory, except for the outputs."""
        found: list[Path] = []
        for logs in _folders(self._work):
            if logs == self._outputs:
                continue
            for inner in _folders(logs):
                if inner.name.startswith("version_"):
                    found.append(inner)
                elif logs.name.endswith("logs"):
                    found += [one for one in _folders(inner) if one.name.startswith("version_")]
                elif logs.name == "runs":
                    found += [inner, *_folders(inner)]
        usual = [folder / name for folder in found for name in _TABLES if (folder / name).is_file()]
        return [*(path for folder in self._others for path in _below(folder)), *usual]


def _is_named(name: str) -> bool:
    return name in _TABLES or _LINES.fullmatch(name) is not None


def _below(folder: Path) -> list[Path]:
    below = walk(str(folder), lambda _path, _error: None)
    return [folder / path for path, entry in below if entry and _is_named(entry.name)]


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
    """The current number of rows of a file."""
    try:
        return max(path.read_bytes().count(b"\n") - (path.name in _TABLES), 0)
    except OSError:
        return 0
