"""The metrics in MLflow's stores on a node: a file for each metric of a run, or a table in an SQLite database."""

from __future__ import annotations

import math
import os
import re
import sqlite3
import time
from collections.abc import Collection, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

from stoker.agent.shipping.metrics.points import LONGEST_NAME
from stoker.agent.shipping.metrics.trackers.tracked import TrackedValues

METRIC_PATH = re.compile(r"(?:.*/)?[^/]+/[0-9a-f]{32}/metrics/(.+)")  # experiment, run, and the metric's name
DATABASES = ("mlflow.db", "mlruns.db")
CHUNK_BYTES = 256 << 10
MOST_ROWS = 5000  # in one read of a database
_QUERY_S = 1.0  # a longer query is of a database that is not MLflow's
_INSTRUCTIONS = 10_000  # between two looks at the clock
_INFINITE = 1.7976931348623157e308  # MLflow's substitute in databases


class MlflowMetricFile:
    """Lines of `milliseconds value step`, maybe with a dataset behind. An incomplete line waits for its end."""

    def __init__(self, file: Path, name: str) -> None:
        self.behind = False
        self._file = file
        self._name = name
        self._offset = 0

    def skip(self) -> None:
        try:
            self._offset = self._file.stat().st_size
        except OSError:
            return

    def fresh(self) -> Iterator[TrackedValues]:
        data = self._data()
        end = data.rfind(b"\n") + 1
        self.behind = len(data) == CHUNK_BYTES
        if not end and self.behind:
            end = len(data)  # MLflow ends every line: this one is damaged
        self._offset += end
        for line in data[:end].splitlines():
            if one := _line(line, self._name):
                yield one

    def _data(self) -> bytes:
        try:
            if self._file.stat().st_size <= self._offset:
                return b""
            with self._file.open("rb") as file:
                return os.pread(file.fileno(), CHUNK_BYTES, self._offset)
        except OSError:
            return b""


def _line(line: bytes, name: str) -> TrackedValues | None:
    parts = line.split()
    try:
        at, value = int(parts[0][:20]) / 1000, float(parts[1])
        step = float(int(parts[2][:20])) if len(parts) > 2 else None
    except (ValueError, IndexError):
        return None
    return TrackedValues(at, step, {name: value})


class MlflowDatabase:
    """The rows of the table `metrics` in the order they were written. Opened for reading, and only for a moment, so
    that the script never waits for long. A database that is locked is read the next time."""

    def __init__(self, file: Path) -> None:
        self.behind = False
        self._file = file
        self._row = 0
        self._seen: tuple[int, int] = (0, 0)  # size and modification time

    def skip(self) -> None:
        for (row,) in self._rows("SELECT coalesce(max(rowid), 0) FROM metrics", ()):
            self._row = row

    def fresh(self) -> Iterator[TrackedValues]:
        try:
            now = self._file.stat()
        except OSError:
            return
        mark = (now.st_size, now.st_mtime_ns)
        if mark == self._seen and not self._journal():
            return
        rows = list(self._rows(_NEWER, (self._row, MOST_ROWS)))
        self.behind = len(rows) == MOST_ROWS
        for row, key, value, millis, step, is_nan in rows:
            self._row = row
            number = math.nan if is_nan else math.copysign(math.inf, value) if abs(value) >= _INFINITE else value
            yield TrackedValues(millis / 1000, float(step), {key: float(number)})
        # Only what was changed a while ago is known to be complete: a clock has ticks.
        self._seen = mark if not self.behind and time.time_ns() - now.st_mtime_ns > 2_000_000_000 else (0, 0)

    def _journal(self) -> bool:
        """The newest rows may be in another file."""
        return self._file.with_name(f"{self._file.name}-wal").exists()

    def _rows(self, query: str, values: tuple[int, ...]) -> list[tuple[Any, ...]]:
        give_up = time.monotonic() + _QUERY_S
        try:
            with closing(sqlite3.connect(f"file:{quote(str(self._file))}?mode=ro", timeout=0.2, uri=True)) as database:
                database.text_factory = lambda data: data.decode(errors="replace")
                database.set_progress_handler(lambda: time.monotonic() > give_up, _INSTRUCTIONS)
                tables = database.execute("SELECT 1 FROM sqlite_master WHERE name = 'metrics' AND type = 'table'")
                return database.execute(query, values).fetchall() if tables.fetchone() else []
        except (sqlite3.Error, OSError, OverflowError, MemoryError):
            return []


_NUMBER = "('integer', 'real')"
_NEWER = f"""
SELECT rowid, substr(key, 1, {LONGEST_NAME}), value, timestamp, step, is_nan FROM metrics
WHERE rowid > ? AND typeof(key) = 'text' AND typeof(value) IN {_NUMBER} AND typeof(timestamp) = 'integer'
AND typeof(step) = 'integer' ORDER BY rowid LIMIT ?
"""


def opened(databases: Collection[Path], path: str, file: Path) -> MlflowMetricFile | MlflowDatabase | None:
    """`databases` are such whatever their names."""
    if file.name in DATABASES or file in databases:
        return MlflowDatabase(file)
    found = METRIC_PATH.fullmatch(path)
    return MlflowMetricFile(file, found[1]) if found and ".trash" not in path.split("/") else None
