"""What a run reports and leaves, as programs read it: logs from any offset, metrics, and files to download."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload
from urllib.parse import quote

from stoker.client.api.connection import Connection
from stoker.client.progress import TransferProgress
from stoker.errors import Corrupt, Missing, ServerUnavailable, StokerError, StoreFailed, Unanswered
from stoker.model import untrusted
from stoker.model.run.run import Run, RunState
from stoker.model.snapshot import Entry, EntryKind, Snapshot
from stoker.stores.trees.blobstream import read_blobs
from stoker.stores.trees.landing import Landing, choose_folder

if TYPE_CHECKING:
    import pandas


OUTAGES = (ServerUnavailable, StoreFailed, Unanswered)  # temporary, or repairable
Waits = Callable[[StokerError], bool]  # receives an outage, and returns whether to wait for its end

T = TypeVar("T")

_QUICK_S = 1.0  # a shorter connection has failed
_FAILURES = 10  # in a row
_PAUSE_S = 0.2
_OUTAGE_S = 2.0  # between two attempts during an outage


_TRIES = 3


def patiently(work: Callable[[], T], waits: Waits) -> T:
    """The result of the work, once no outage prevents it."""
    while True:
        try:
            return work()
        except OUTAGES as error:
            if not waits(error):
                raise
        time.sleep(_OUTAGE_S)


class Tail:
    """`offset` is always that of the first byte not yet returned."""

    def __init__(
        self,
        connection: Connection,
        path: str,
        offset: int = 0,
        since: datetime | None = None,
        waits: Waits = lambda _: False,
    ) -> None:
        self.offset = offset
        self._waits = waits
        self.read_any = False
        self._connection = connection
        self._path = path
        self._since = since

    def read(self, follow: bool) -> Iterator[bytes]:
        """Until the server says that the log is complete."""
        failures = 0
        while True:
            opened_at = time.monotonic()
            try:
                yield from self._once(follow)
                return
            except _CutOff as cut:
                failures = failures + 1 if time.monotonic() - opened_at < _QUICK_S else 0
                if failures >= _FAILURES and not self._waits(cut.error):
                    raise cut.error from None
                time.sleep(_OUTAGE_S if failures >= _FAILURES else _PAUSE_S if failures else 0)
            except OUTAGES as error:
                if not self._waits(error):
                    raise
                time.sleep(_OUTAGE_S)

    def _once(self, follow: bool) -> Iterator[bytes]:
        since = self._since.timestamp() if self._since else None
        query = {"offset": self.offset, "follow": follow or None, "since": since}
        headers, pieces = self._connection.stream(self._path, query)
        self.offset = int(headers.get("stoker-offset", self.offset))
        self._since = None  # found: from here on the offset is enough
        while True:
            try:
                piece = next(pieces, None)
            except ServerUnavailable as error:
                raise _CutOff(error) from error
            if piece is None:
                return
            self.offset += len(piece)
            self.read_any = True
            yield piece


class _CutOff(Exception):
    """The response was truncated; there may be more."""

    def __init__(self, error: ServerUnavailable) -> None:
        super().__init__(error)
        self.error = error


@dataclass(frozen=True, slots=True)
class Point:
    """What one rank reported at one time."""

    attempt: int
    rank: int
    at: datetime
    step: float | None
    values: Mapping[str, float]


class Metrics(Sequence[Point]):
    """Points in the order they were reported."""

    def __init__(self, points: Iterable[Point]) -> None:
        self._points = tuple(points)

    @overload
    def __getitem__(self, index: int) -> Point: ...
    @overload
    def __getitem__(self, index: slice) -> Metrics: ...
    def __getitem__(self, index: int | slice) -> Point | Metrics:
        return Metrics(self._points[index]) if isinstance(index, slice) else self._points[index]

    def __len__(self) -> int:
        return len(self._points)

    def __repr__(self) -> str:
        last = ", ".join(f"{name}={value:g}" for name, value in self.last.items())
        return f"Metrics({len(self)} points; last: {last})" if self else "Metrics(0 points)"

    @property
    def names(self) -> list[str]:
        """Every metric, in the order of its first value."""
        return list(self.last)

    @property
    def last(self) -> dict[str, float]:
        """The newest value of every metric."""
        return {name: value for point in self._points for name, value in point.values.items()}

    def series(self, name: str) -> list[tuple[float | None, float]]:
        """The steps and values of one metric; empty if there is none of that name.

        A step that was repeated after an eviction counts once, with the value of the later attempt.
        """
        found: list[Point] = []
        for point in (one for one in self._points if name in one.values):
            while found and found[-1].attempt < point.attempt and _not_before(found[-1].step, point.step):
                found.pop()
            found.append(point)
        return [(point.step, point.values[name]) for point in found]

    def frame(self) -> pandas.DataFrame:
        """One row per point: attempt, rank, at, step, then a column per metric. Requires pandas."""
        import pandas  # heavy, and only here

        facts = ["attempt", "rank", "at", "step"]
        rows = [{key: getattr(point, key) for key in facts} | dict(point.values) for point in self._points]
        return pandas.DataFrame(rows, columns=facts + [name for name in self.names if name not in facts])


def _not_before(earlier: float | None, later: float | None) -> bool:
    return earlier is not None and later is not None and earlier >= later


class What(StrEnum):
    """Which files of a run."""

    BROUGHT = "brought"  # what is downloaded automatically: the outputs, and a checkpoint that is not too large
    OUTPUTS = "outputs"
    CHECKPOINT = "checkpoint"  # the newest
    STRAY = "stray"  # files that its script wrote outside its outputs and checkpoints


@dataclass(frozen=True, slots=True)
class WantedResults:
    what: What = What.BROUGHT
    only: str = ""  # this file, the files of this folder, or those that match this pattern; empty: all


def fetch(
    run: Run,
    connection: Connection,
    parent: Path,
    progress: TransferProgress | None = None,
    wanted: WantedResults | None = None,
) -> tuple[Path, tuple[Entry, ...]]:
    """Returns the folder, and the files that are there now. After a lost connection only missing files are
    written."""
    wanted = wanted or WantedResults()
    name = run.name if run.state is RunState.SUCCEEDED else f"{run.name}-{run.state}"
    folder = choose_folder(parent.absolute(), name, run.id)
    for _ in range(_TRIES):
        try:
            return folder, _land(run, connection, (folder, wanted), progress or TransferProgress())
        except (ServerUnavailable, Corrupt, Missing) as error:
            failed = error  # a restart, or outputs that changed between the list and the contents
    raise failed


def _land(
    run: Run, connection: Connection, order: tuple[Path, WantedResults], progress: TransferProgress
) -> tuple[Entry, ...]:
    """`order` says which file is written where."""
    folder, wanted = order
    path = f"/v1/runs/{quote(run.name, safe='')}"
    path, tar = (f"{path}/outputs", ".tar") if wanted.what is What.BROUGHT else (f"{path}/files/{wanted.what}", "/tar")
    entries = untrusted.read(Snapshot, connection.get(path), datetime.now(UTC)).entries
    entries = tuple(entry for entry in entries if _is_meant(entry.path, wanted.only))
    landing = Landing(entries, folder, run.id)
    if landing.wanted():
        sizes = {entry.sha256: entry.size_bytes for entry in entries if entry.kind is EntryKind.FILE}
        progress.begin("bringing", len(sizes), sum(sizes.values()))
        _, pieces = connection.stream(f"{path}{tar}")
        for sha256, content in read_blobs(io.BufferedReader(_Incoming(pieces, progress), 1 << 18)):
            landing.take(sha256, content)
            progress.moved(0, 1)
    landing.finish()
    return tuple(entry for entry in entries if entry.kind is EntryKind.FILE)


def _is_meant(path: str, only: str) -> bool:
    only = only.rstrip("/")
    return not only or path == only or path.startswith(f"{only}/") or fnmatchcase(path, only)


class _Incoming(io.RawIOBase):
    """The chunks of a response as a file to read from."""

    def __init__(self, pieces: Iterator[bytes], progress: TransferProgress) -> None:
        super().__init__()
        self._pieces = pieces
        self._progress = progress
        self._held = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._held:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._held = piece
            self._progress.moved(len(piece), 0)
        size = min(len(buffer), len(self._held))
        buffer[:size] = self._held[:size]
        self._held = self._held[size:]
        return size
