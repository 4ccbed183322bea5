"""What the ranks report, from wherever they report it, to the store: one line per point, a summary, and the target."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Protocol

from stoker.agent.checkpoints.tree import walk
from stoker.agent.shipping.eventfiles import EventFile
from stoker.agent.shipping.logs import Masking
from stoker.agent.shipping.points import LONGEST_NAME, Lines, Point, Summaries, logged, progress
from stoker.agent.shipping.worker import Pace, Patience, Shipper, Trouble
from stoker.errors import StokerError
from stoker.model.node.orders import Orders
from stoker.model.workspace import layout
from stoker.stores import Store
from stoker.stores.pacing import pacing

CHUNK_BYTES = 1 << 20
EVENT_FILES_EVERY_S = 1.0
UNWRITTEN_BYTES = 8 << 20  # points that wait for the store; beyond this they wait where they were reported
SPLITS = ("train", "validation", "val", "test", "eval")  # folders that tell apart metrics of the same name


class Source(Protocol):
    """`behind` says that the last look left something for the next one, `guesses` that names in its points may be of
    metrics that the script reports in another way as well."""

    name: str
    behind: bool
    guesses: bool

    def fresh(self, *, final: bool) -> Iterator[Point]:
        """Points since the last look. `final` says that nobody writes any more."""
        ...


class GrowingFile:
    """A file that a script writes to, read piece by piece. It need not be there yet."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._fd = -1
        self._offset = 0
        self._open = False  # the last line has no end yet
        self.behind = False  # there is more of it than the last piece

    def fresh(self, *, final: bool) -> bytes:
        """What was added since the last look. `final`: a last line without its break gets one, so that it counts."""
        data = self._data()
        self.behind = len(data) == CHUNK_BYTES
        self._open = not data.endswith(b"\n") if data else self._open
        if final and self._open and not self.behind:
            data += b"\n"
            self._open = False
        return data

    def _data(self) -> bytes:
        if self._fd < 0:
            try:
                self._fd = os.open(self._file, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                return b""
        data = os.pread(self._fd, CHUNK_BYTES, self._offset)
        self._offset += len(data)
        return data


class LinePoints:
    """The lines of a file that grows, as `stoker.log` writes them."""

    def __init__(self, file: Path, read: Callable[[bytes], Point | None]) -> None:
        self.name = file.name
        self.behind = self.guesses = False
        self._file = GrowingFile(file)
        self._read = read
        self._lines = Lines(objects_only=True)

    def fresh(self, *, final: bool) -> Iterator[Point]:
        data = self._file.fresh(final=final)
        self.behind = self._file.behind
        for line in self._lines.feed(data):
            if point := self._read(line):
                yield point


def logged_points(file: Path) -> LinePoints:
    return LinePoints(file, logged)


_LOG_FOLDERS = ("lightning_logs", "runs")


class EventFilePoints:
    """TensorBoard event files anywhere below the outputs. `read` says of files how much of them was read before."""

    name = "event files"
    behind = guesses = False

    def __init__(self, outputs: Path, rank: int, read: Mapping[str, int] | None = None) -> None:
        self._outputs = str(outputs)
        self._rank = rank
        self._read = read or {}
        self._files: dict[str, EventFile] = {}
        self._due = 0.0

    def fresh(self, *, final: bool) -> Iterator[Point]:
        start = time.monotonic()
        if start < self._due and not final:
            return
        for path, entry in walk(self._outputs, lambda _path, _error: None):
            if entry and "tfevents" in entry.name and entry.is_file():
                file = self._files.setdefault(path, EventFile(entry.path, self._read.get(path, 0)))
                for scalar in file.fresh():
                    name = metric_name(path, scalar.tag)
                    value = scalar.value if math.isfinite(scalar.value) else None
                    yield Point(scalar.at, self._rank, scalar.step, {name: value})
        now = time.monotonic()
        self._due = now + max(EVENT_FILES_EVERY_S, 20 * (now - start))  # a large tree is looked at more rarely


def event_files(work: Path, outputs: Path, rank: int, read: Mapping[str, int]) -> list[EventFilePoints]:
    """Those below the outputs, and in the folders that TensorBoard and Lightning write to unless they are told
    otherwise. What lies there before the script begins is of an earlier attempt."""
    found = [EventFilePoints(outputs, rank, read)]
    for folder in (work / name for name in _LOG_FOLDERS):
        if not folder.is_relative_to(outputs) and not outputs.is_relative_to(folder):
            below = walk(str(folder), lambda _path, _error: None)
            lying = {path: entry.stat().st_size for path, entry in below if entry and entry.is_file()}
            found.append(EventFilePoints(folder, rank, lying))
    return found


def metric_name(path: str, tag: str) -> str:
    """A tag, told apart by the folder where that is a split: Keras writes the same tags to `train` and `validation`."""
    folder = PurePosixPath(path).parent.name
    return (f"{folder}/{tag}" if folder in SPLITS else tag)[:LONGEST_NAME]


class MetricsShipper(Shipper):
    """Reads all sources, writes their points to the store, and shows each to `seen`. To be finished when nobody
    reports any more. `reported` are the names that the script reports by itself, and nobody has to guess."""

    def __init__(
        self,
        store: Store,
        orders: Orders,
        masking: Masking,
        trouble: Trouble,
        seen: Callable[[Point, str], None] = lambda _point, _source: None,
    ) -> None:
        super().__init__("metrics")
        self._store = store
        self._key = layout.metrics(orders.run_id, orders.attempt, orders.node)
        self._masking = masking
        self._size = 0  # of what the store has
        self._unwritten = b""
        self._patience = Patience("metrics", trouble)
        self._write_every_s = 2 * pacing(store).write_s
        self._write_due = 0.0
        self.summaries = Summaries()
        self.progress: float | None = None  # the last that was reported
        self.sources: list[Source] = []
        self.reported: set[str] = set()
        self._seen = seen

    def work(self) -> None:
        pace = Pace(0.02, 0.1)
        while not self.ending.is_set():
            asked = self.asked
            found = self._read(final=False)
            if self._write() and not self._behind:
                self.answer(asked)
            if not self._behind:
                self.pause(pace.after(found), asked)
        while self._read(final=True):
            if not self._write():
                time.sleep(0.05)
        while not self._write():
            time.sleep(0.05)
        self.answer(self.asked)

    @property
    def _behind(self) -> bool:
        return any(source.behind for source in self.sources) and len(self._unwritten) < UNWRITTEN_BYTES

    def _read(self, *, final: bool) -> bool:
        """True if there may be more."""
        if len(self._unwritten) >= UNWRITTEN_BYTES:
            return True
        lines = []
        for source in self.sources:
            for point in source.fresh(final=final):
                if not source.guesses:
                    self.reported.update(point.values)
                shown = point.named(self._masking.text) if self._masking.needed else point
                self.summaries.add(shown)
                if (reached := progress(point)) is not None:
                    self.progress = reached
                self._seen(shown, source.name)
                lines.append(shown.line())
        self._unwritten += b"".join(lines)
        return bool(lines) or self._behind

    def continue_from(self, sizes: Mapping[str, int]) -> None:
        """Behind what earlier machines of this attempt have shipped, by key."""
        self._size = sizes.get(self._key, 0)

    def _write(self) -> bool:
        """True once nothing waits any more."""
        if not self._unwritten or not self._patience.due or not self._write_is_due:
            return not self._unwritten
        try:
            self._size = self._store.append(self._key, self._size, self._unwritten)
        except StokerError as error:
            self._patience.failed(error)
            return False
        self._patience.worked()
        self._unwritten = b""
        self._write_due = time.monotonic() + self._write_every_s
        return True

    @property
    def _write_is_due(self) -> bool:
        """Where each write may cost, points wait for others. At the end, and when there are too many, none waits."""
        full = len(self._unwritten) >= UNWRITTEN_BYTES
        return full or self.hurried or self.awaited or self.ending.is_set() or time.monotonic() >= self._write_due
