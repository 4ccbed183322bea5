"""What the ranks report, from all sources, to the store: one line per point, a summary, and the target."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Protocol

from stoker.agent.checkpoints.folders.files import walk
from stoker.agent.shipping.logs import Masking
from stoker.agent.shipping.metrics.eventfiles import EventFile
from stoker.agent.shipping.metrics.points import LONGEST_NAME, Lines, MetricPoint, Summaries, logged, progress
from stoker.agent.shipping.worker import LookPause, Patience, Shipper, StoreTrouble
from stoker.errors import StokerError
from stoker.model.orders import Orders
from stoker.model.workspace import layout
from stoker.stores import Store, pacing

CHUNK_BYTES = 1 << 20
EVENT_FILES_EVERY_S = 1.0
UNWRITTEN_BYTES = 8 << 20  # points that wait for the store; beyond this they stay at their source
SPLITS = ("train", "validation", "val", "test", "eval")  # folders that distinguish metrics of the same name


class MetricSource(Protocol):
    """`behind`: the last read left something for the next one. `guesses`: names in its points may be of metrics that
    the script also reports in another way."""

    name: str
    behind: bool
    guesses: bool

    def fresh(self, *, final: bool) -> Iterator[MetricPoint]:
        """Points since the last read. `final` means that nobody writes any more."""
        ...


class GrowingFile:
    """A file that a script writes to, read piece by piece. It need not exist yet."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._fd = -1
        self._offset = 0
        self._open = False  # the last line is incomplete
        self.behind = False  # there is more of it than the last piece

    def fresh(self, *, final: bool) -> bytes:
        """What was added since the last read. `final`: an incomplete last line gets a line break, so that it counts."""
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
    """The lines of a growing file, as `stoker.log` writes them."""

    def __init__(self, file: Path, read: Callable[[bytes], MetricPoint | None]) -> None:
        self.name = file.name
        self.behind = self.guesses = False
        self._file = GrowingFile(file)
        self._read = read
        self._lines = Lines(objects_only=True)

    def fresh(self, *, final: bool) -> Iterator[MetricPoint]:
        data = self._file.fresh(final=final)
        self.behind = self._file.behind
        for line in self._lines.feed(data):
            if point := self._read(line):
                yield point


def logged_points(file: Path) -> LinePoints:
    return LinePoints(file, logged)


_LOG_FOLDERS = ("lightning_logs", "runs")


class EventFilePoints:
    """TensorBoard event files anywhere below the outputs. `read` says how much of each file was read before."""

    name = "event files"
    behind = guesses = False

    def __init__(self, outputs: Path, rank: int, read: Mapping[str, int] | None = None) -> None:
        self._outputs = str(outputs)
        self._rank = rank
        self._read = read or {}
        self._files: dict[str, EventFile] = {}
        self._due = 0.0

    def fresh(self, *, final: bool) -> Iterator[MetricPoint]:
        start = time.monotonic()
        if start < self._due and not final:
            return
        for path, entry in walk(self._outputs, lambda _path, _error: None):
            if entry and "tfevents" in entry.name and entry.is_file():
                file = self._files.setdefault(path, EventFile(entry.path, self._read.get(path, 0)))
                for scalar in file.fresh():
                    name = metric_name(path, scalar.tag)
                    value = scalar.value if math.isfinite(scalar.value) else None
                    yield MetricPoint(scalar.at, self._rank, scalar.step, {name: value})
        now = time.monotonic()
        self._due = now + max(EVENT_FILES_EVERY_S, 20 * (now - start))  # a large tree is scanned less often


def event_files(
    work: Path, outputs: Path, rank: int, read: Mapping[str, int], others: Iterable[Path] = ()
) -> list[EventFilePoints]:
    """Those below the outputs and `others`, the folders of checkpoints, and in the default folders of TensorBoard and
    Lightning. Files from before the script started belong to an earlier attempt."""
    found, seen = [EventFilePoints(outputs, rank, read)], [outputs]
    for folder in (*others, *(work / name for name in _LOG_FOLDERS)):
        if all(are_apart(folder, one) for one in seen):
            seen.append(folder)
            below = walk(str(folder), lambda _path, _error: None)
            lying = {path: entry.stat().st_size for path, entry in below if entry and entry.is_file()}
            found.append(EventFilePoints(folder, rank, lying))
    return found


def are_apart(one: Path, other: Path) -> bool:
    """Neither is in the other."""
    return not one.is_relative_to(other) and not other.is_relative_to(one)


def metric_name(path: str, tag: str) -> str:
    """A tag, prefixed with the folder if that is a split: Keras writes the same tags to `train` and `validation`."""
    folder = PurePosixPath(path).parent.name
    return (f"{folder}/{tag}" if folder in SPLITS else tag)[:LONGEST_NAME]


class MetricsShipper(Shipper):
    """Reads all sources, writes their points to the store, and passes each to `seen`. Finish it when nobody reports any
    more. `reported` are the names that the script reports itself, so that nothing need be guessed."""

    def __init__(
        self,
        store: Store,
        orders: Orders,
        masking: Masking,
        trouble: StoreTrouble,
        seen: Callable[[MetricPoint, str], None] = lambda _point, _source: None,
    ) -> None:
        super().__init__("metrics")
        self._store = store
        self._key = layout.metrics(orders.run_id, orders.attempt, orders.node)
        self._masking = masking
        self._size = 0  # of what is in the store
        self._unwritten = b""
        self._patience = Patience("metrics", trouble)
        self._write_every_s = 2 * pacing(store).write_s
        self._write_due = 0.0
        self.summaries = Summaries()
        self.progress: float | None = None  # the last one reported
        self.sources: list[MetricSource] = []
        self.reported: set[str] = set()
        self._seen = seen

    def work(self) -> None:
        pace = LookPause(0.02, 0.1)
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
        """After what earlier VMs of this attempt have uploaded, by key. Their points count. Raises StoreFailed."""
        self._size = sizes.get(self._key, 0)
        self.summaries = Summaries()
        if 0 < self._size <= UNWRITTEN_BYTES:
            for point in filter(None, map(logged, self._store.get(self._key).split(b"\n"))):
                self.summaries.add(point)

    def _write(self) -> bool:
        """True once nothing is pending."""
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
        """Where each write may be billed, points are batched. At the end, and when there are too many, they are
        written."""
        full = len(self._unwritten) >= UNWRITTEN_BYTES
        return full or self.hurried or self.awaited or self.ending.is_set() or time.monotonic() >= self._write_due
