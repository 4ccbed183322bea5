"""Metrics in files of one kind, wherever they lie: found as they appear, each read from where the last read ended."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from stoker.agent.checkpoints.folders.files import walk
from stoker.agent.shipping.metrics.points import MetricPoint, storable, whole

EVERY_S = 1.0
MOST_FILES = 10_000  # that one source follows
_LAST_SECOND = 2.5e11  # of the years that calendars have


@dataclass(frozen=True, slots=True)
class TrackedValues:
    at: float  # unix seconds
    step: float | None
    values: Mapping[str, float]


class TrackedFile(Protocol):
    """One file, from where the last read ended. Whatever is wrong with it, it only has nothing more."""

    behind: bool  # the last read left something for the next one

    def fresh(self) -> Iterator[TrackedValues]: ...

    def skip(self) -> None:
        """An earlier attempt has read what is there now."""
        ...


# For a path below its folder, and the file. None: the tracker did not write it.
Opens = Callable[[str, Path], TrackedFile | None]


class TrackedPoints:
    """Points in the files of one tracker anywhere below some folders, or in single files. What was there before the
    script started is of an earlier attempt, or of another training."""

    guesses = False

    def __init__(self, name: str, places: Iterable[Path], opens: Opens, rank: int) -> None:
        self.name = name
        self.behind = False
        self._places = list(dict.fromkeys(places))
        self._opens = opens
        self._rank = rank
        self._due = 0.0
        self._files: dict[Path, TrackedFile] = {}
        for file in self._found():
            file.skip()

    def fresh(self, *, final: bool) -> Iterator[MetricPoint]:
        start = time.monotonic()
        if start < self._due and not (final or self.behind):
            return
        self.behind = False
        for file in self._found():
            yield from map(self._point, file.fresh())
            self.behind = self.behind or file.behind
        now = time.monotonic()
        self._due = now + max(EVERY_S, 20 * (now - start))  # a large tree is scanned less often

    def _point(self, found: TrackedValues) -> MetricPoint:
        at = found.at if 0 <= found.at <= _LAST_SECOND else time.time()
        step = None if found.step is None or not math.isfinite(found.step) else whole(found.step)
        values = {storable(name): one if math.isfinite(one) else None for name, one in found.values.items()}
        return MetricPoint(at, self._rank, step, values)

    def _found(self) -> list[TrackedFile]:
        for place in self._places:
            for path, file in _below(place):
                if len(self._files) >= MOST_FILES:
                    break
                if file not in self._files and (opened := self._opens(path, file)):
                    self._files[file] = opened
        return list(self._files.values())


def _below(place: Path) -> Iterator[tuple[str, Path]]:
    if place.is_file():
        yield place.name, place
        return
    for path, entry in walk(str(place), lambda _path, _error: None):
        if entry and entry.is_file(follow_symlinks=False):
            yield path, place / path
