"""The metrics in what a rank prints: JSON lines, the job's own expressions, and the usual shapes of text."""

from __future__ import annotations

import math
import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from stoker.agent import namedvalues
from stoker.agent.points import LONGEST_LINE, Point, printed, whole
from stoker.agent.shapes import ESCAPES, LONGEST_TEXT, Found, Shapes, candidates
from stoker.model.pattern import OFF, Match, MetricPatterns, Pattern, compiled

CHUNK_BYTES = 1 << 20
HELD_S = 1.0  # a script that prints a metric and reports it too does both within this time
SLOW_S = 0.1  # an expression that takes longer for one line is not used again
_REDRAWN = re.compile(rb"[\r\b]+")
Tell = Callable[[str, str], None]


class PrintedLines:
    """Lines that may hold metrics, out of pieces of output. Of a line that was drawn over and over, as progress bars
    are, its last state."""

    def __init__(self, *, every: bool = False) -> None:
        self._every = every
        self._kept = b""
        self._too_long = False  # the rest of the line that has begun is of no interest

    def feed(self, data: bytes, *, flood: bool = False) -> Iterator[bytes]:
        text = self._kept + data
        end = text.rfind(b"\n") + 1
        self._kept = text[end:]
        whole, too_long = text[:end], self._too_long
        if end:
            self._too_long = False
        if len(self._kept) > LONGEST_LINE:
            self._shorten()
        if too_long and end:
            whole = whole[whole.find(b"\n") + 1 :]
        if whole:
            lines = whole.split(b"\n") if self._every else candidates(b"\n" + whole, flood=flood)
            yield from filter(None, map(last_state, lines))

    def _shorten(self) -> None:
        drawn = self._kept.rfind(b"\r", 0, -1)
        self._kept = self._kept[drawn + 1 :] if drawn >= 0 else self._kept
        if len(self._kept) > LONGEST_LINE:
            self._kept, self._too_long = b"", True


def last_state(line: bytes) -> bytes:
    """What a terminal would show of the line in the end, or nothing where that is too long."""
    line = line.rstrip(b"\r\b ")
    if b"\r" in line or b"\b" in line:
        line = next((part for part in reversed(_REDRAWN.split(line)) if part.strip()), b"")
    return line if len(line) <= LONGEST_LINE else b""


class PrintedPoints:
    """What a rank prints, as a source. What is found by its shape alone waits a moment, and gives way to a metric of
    the same name that the script reports in another way: `reported` has those names."""

    def __init__(self, log: Path, rank: int, metrics: MetricPatterns, reported: set[str], tell: Tell) -> None:
        self.name = log.name
        self.behind = False
        self.guesses = True
        self._file = log
        self._rank = rank
        self._patterns = {} if metrics == OFF else {name: compiled(text) for name, text in _mapping(metrics).items()}
        self._shapes = None if metrics == OFF else Shapes()
        self._lines = PrintedLines(every=bool(self._patterns))
        self._reported = reported
        self._tell = tell
        self._told: set[str] = set()
        self._held: deque[tuple[float, Point]] = deque()
        self._fd = -1
        self._offset = 0
        self._open = False  # the last line has no end yet

    def objects_only(self) -> PrintedPoints:
        """Of every rank but the first, what it prints for people says the same again."""
        self._shapes = None
        return self

    def fresh(self, *, final: bool) -> Iterator[Point]:
        data = self._data()
        self.behind = len(data) == CHUNK_BYTES
        self._open = not data.endswith(b"\n") if data else self._open
        if final and self._open and not self.behind:
            data += b"\n"  # so that a last line without its break counts
            self._open = False
        for line in self._lines.feed(data, flood=self.behind) if data else ():
            yield from self._points(line)
        yield from self._due(time.monotonic() - HELD_S if not final or self.behind else math.inf)

    def _points(self, line: bytes) -> Iterator[Point]:
        now = time.time()
        if line.startswith(b"{") and (point := printed(line, now, self._rank)):
            self._reported.update(point.values)
            yield point
            return
        text = ESCAPES.sub("", line.decode(errors="replace"))
        own = self._matched(text)
        if own:
            yield Point(now, self._rank, _step(own.step), own.values)
        elif self._shapes and (found := self._shapes.read(text)):
            self._say(found, text)
            values = {name: one if math.isfinite(one) else None for name, one in found.values.items()}
            self._held.append((time.monotonic(), Point(now, self._rank, _step(found.step), values)))

    def _matched(self, text: str) -> Found | None:
        """What the job's own expressions find."""
        values: dict[str, float] = {}
        step = None
        for name, pattern in self._patterns.items():
            if match := self._timed(name, pattern, text):
                values[name] = match.value
                step = match.step if match.step is not None else step
        if not values:
            return None
        self._reported.update(values)
        counted = namedvalues.counters(text[:LONGEST_TEXT])
        usual = counted.step if counted.step is not None else counted.epoch
        return Found("", step if step is not None else usual, values)

    def _timed(self, name: str, pattern: Pattern, text: str) -> Match | None:
        begun = time.perf_counter()
        match = pattern.find(text)
        took_s = time.perf_counter() - begun
        if took_s > SLOW_S:
            self._patterns = {key: one for key, one in self._patterns.items() if key != name}
            self._tell("metrics", f"the pattern of `{name}` took {took_s:.1f} s for one line: it is not used any more")
        return match

    def _due(self, until: float) -> Iterator[Point]:
        """What has waited long enough, without what the script has reported itself by now."""
        while self._held and self._held[0][0] <= until:
            _, point = self._held.popleft()
            values = {name: value for name, value in point.values.items() if name not in self._reported}
            if values and set(values) != {"epoch"}:
                yield Point(point.at, point.rank, point.step, values)

    def _say(self, found: Found, text: str) -> None:
        if found.shape in self._told:
            return
        self._told.add(found.shape)
        names = ", ".join(list(found.values)[:8])
        line = text.strip() if len(text.strip()) <= 100 else text.strip()[:97] + "..."
        self._tell("metrics", f"metrics found in {found.shape}: {names} (in `{line}`)")

    def _data(self) -> bytes:
        if self._fd < 0:
            try:
                self._fd = os.open(self._file, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                return b""
        data = os.pread(self._fd, CHUNK_BYTES, self._offset)
        self._offset += len(data)
        return data


def _mapping(metrics: MetricPatterns) -> Mapping[str, str]:
    return metrics if isinstance(metrics, Mapping) else {}


def _step(step: float | None) -> float | None:
    return whole(step) if step is not None and math.isfinite(step) else None
