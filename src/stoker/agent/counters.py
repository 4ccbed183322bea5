"""What a script shows of its own progress: epochs, steps and numbers in lines that it prints again and again.

Two attempts whose counters overlap have done the same work twice, whatever the checkpoint between them says.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from stoker.agent.points import STEPS, Lines, Point
from stoker.model.report import Climb

MOST_COUNTERS = 64
MOST_TOLD = 6
MOST_POINTS = 24  # of one counter: enough to tell when it was where
READ_BYTES = 32 << 10  # at one look; of a script that prints more, the newest
LARGEST = 1e15
_NAMES = "global_step|epoch|step|iteration|iter|round|trial|generation|episode"
_UNITS = r"(?!\s*(?:%|[kKMGT]?i?B\b|(?:ms|s|sec|secs|seconds|m|min|minutes|h|hours)\b))"
_NUMBER = rf"(\d{{1,15}})(?![\d]*[.:]\d)(?!\d){_UNITS}"
_NAMED = re.compile(rf"(?:\b(\w+)\s+)?\b({_NAMES})\b[\"']?\s*[:=#\[(]*\s*{_NUMBER}", re.IGNORECASE)
_BRACKETED = re.compile(r"\[(\d{1,15})\]")
_LEADING = re.compile(rf"\W{{0,8}}([A-Za-z_][A-Za-z_ ]{{0,38}}?)[\s:=#\[(]+{_NUMBER}")
_NOT_HERE = re.compile(r"resum|restor|load|continu|checkpoint|\bfrom\b", re.IGNORECASE)  # of where it was earlier
_NOT_NOW = {"max", "total", "num", "number", "last", "best", "of", "per", "every"}


class Counter:
    """Values of one kind. One that falls back is a counter within another, and says nothing."""

    def __init__(self, value: float, at: float) -> None:
        self.points = [(at, value)]
        self.inner = False

    def add(self, value: float, at: float) -> None:
        last = self.points[-1][1]
        if value > last:
            self.points.append((at, value))
            if len(self.points) > MOST_POINTS:
                self.points = [*self.points[:-1:2], self.points[-1]]
        elif value < last and len(self.points) == 1:  # it was printed of something else, such as a setting
            self.points = [(at, value)]
        elif value < last:
            self.inner = True


class Counters:
    """`add` and `see` are for one thread, `climbs` for any."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[str, Counter] = {}

    def see(self, point: Point) -> None:
        """What was reported as a metric."""
        if point.step is not None and point.values:
            self._add(f"step of {next(iter(point.values))}", point.step)
        for name in STEPS:
            if (value := point.values.get(name)) is not None:
                self._add(name, value)

    def read(self, line: str) -> None:
        """What was printed."""
        for name, value in numbers(line):
            self._add(name, value)

    def climbs(self, since: float) -> tuple[Climb, ...]:
        """In seconds from a moment of the clock: those that people name first, then those that say most."""
        usable = [(name, one.points) for name, one in self._known.copy().items() if not one.inner]
        usable.sort(key=lambda known: (not is_named(known[0]), -len(known[1])))
        return tuple(
            Climb(
                name,
                tuple(round(max(at - since, 0.0), 3) for at, _ in points),
                tuple(value for _, value in points),
                named=is_named(name),
            )
            for name, points in usable[:MOST_TOLD]
        )

    def _add(self, name: str, value: float) -> None:
        if not math.isfinite(value) or abs(value) > LARGEST:
            return
        if name in self._known:
            self._known[name].add(value, self._clock())
        elif len(self._known) < MOST_COUNTERS:
            self._known[name] = Counter(value, self._clock())


class CountedLines:
    """The lines that a rank prints, as a source of counters. It reports no points."""

    behind = guesses = False

    def __init__(self, file: Path, counters: Counters) -> None:
        self.name = file.name
        self._file = file
        self._counters = counters
        self._lines = Lines()
        self._offset = 0

    def fresh(self, *, final: bool) -> Iterator[Point]:  # noqa: ARG002  # as sources are asked
        for line in self._lines.feed(self._data().replace(b"\r", b"\n")):
            self._counters.read(line[:400].decode(errors="replace"))
        yield from ()

    def _data(self) -> bytes:
        try:
            with self._file.open("rb") as log:
                size = os.fstat(log.fileno()).st_size
                if size <= self._offset:
                    return b""
                log.seek(max(self._offset, size - READ_BYTES))
                self._offset = size
                return log.read(READ_BYTES)
        except OSError:
            return b""


def numbers(line: str) -> Iterator[tuple[str, int]]:
    """The counters in a line: `epoch 3`, `{"step": 12}`, `[5] rmse: 0.1`, or the words and number it begins with."""
    if _NOT_HERE.search(line):
        return
    named = [(match[2].lower(), int(match[3])) for match in _NAMED.finditer(line) if _is_now(match[1])]
    if named:
        yield from dict(reversed(named)).items()
    elif match := _BRACKETED.match(line):
        yield "[]", int(match[1])
    elif (match := _LEADING.match(line)) and _is_now(match[1].split()[0]):
        yield " ".join(match[1].lower().split()), int(match[2])


def is_named(name: str) -> bool:
    """What it counts is known by its name, and goes before what may be anything."""
    return name.startswith("step of ") or name in _NAMES.split("|") or name == "[]"


def _is_now(word: str | None) -> bool:
    return (word or "").lower() not in _NOT_NOW
