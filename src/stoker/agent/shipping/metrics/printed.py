"""The metrics in the output of a rank: JSON lines, the job's own expressions, and common text formats."""

from __future__ import annotations

import math
import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from stoker.agent.shipping.metrics import namedvalues
from stoker.agent.shipping.metrics.metrics import GrowingFile
from stoker.agent.shipping.metrics.points import LONGEST_LINE, STEPS, Lines, MetricPoint, printed, whole
from stoker.agent.shipping.metrics.shapes import ESCAPES, LONGEST_TEXT, LineMetrics, Shapes, candidates
from stoker.model.job.sections import OFF, Match, MetricPattern, MetricPatterns, compiled
from stoker.model.run.report import Climb

HELD_S = 1.0  # a script that prints a metric and reports it too does both within this time
BAR_S = 20.0  # how often a bar that has not ended is read
SLOW_S = 0.1  # an expression that takes longer for one line is not used again
_BACK = re.compile(rb"(\x08+)")
_PERCENT = re.compile(r"([^|%]{0,80}?):?\s{0,4}(\d{1,3})%\|")
_COUNTED = re.compile(r"\|\s{0,8}(\d{1,12})/\d{1,12} \[")
# What such a bar tells of its training so far. An accuracy may be one of the first batches of an evaluation.
_SO_FAR = re.compile(r"(?i)loss|(^|[_/])lr$|learning_rate|reward|return|ppl|perplexity|norm$")
Tell = Callable[[str, str], None]


class PrintedLines:
    """Lines that may contain metrics, from pieces of output. Of a line that is redrawn, such as a progress bar, its
    last state."""

    def __init__(self, *, every: bool = False, wants_all: Callable[[], bool] = lambda: False) -> None:
        self._every = every
        self._wants_all = wants_all
        self._kept = b""
        self._too_long = False  # the rest of the current line is ignored

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
            some = partial(candidates, flood=flood, wants_all=self._wants_all)
            lines = whole.split(b"\n") if self._every else some(b"\n" + whole)
            yield from filter(None, map(last_state, lines))

    def drawn(self) -> bytes:
        """What was last drawn completely of a line that is redrawn and has not ended."""
        end = self._kept.rfind(b"\r")
        return last_state(self._kept[:end]) if end > 0 else b""

    def _shorten(self) -> None:
        drawn = self._kept.rfind(b"\r", 0, -1)
        self._kept = self._kept[drawn + 1 :] if drawn >= 0 else self._kept
        if len(self._kept) > LONGEST_LINE:
            self._kept, self._too_long = b"", True


def last_state(line: bytes) -> bytes:
    """What a terminal would finally show of the line, or nothing where that is too long."""
    line = line.rstrip(b"\r\b ")
    if b"\r" in line:
        line = next((part for part in reversed(line.split(b"\r")) if part.strip(b"\b ")), b"")
    if len(line) > LONGEST_LINE:
        return b""
    return _overwritten(line) if b"\b" in line else line


def _overwritten(line: bytes) -> bytes:
    """Backspaces move the cursor and erase nothing, as in a bar that writes its count into its middle."""
    shown, at = bytearray(), 0
    for piece in _BACK.split(line):
        if piece.startswith(b"\b"):
            at = max(at - len(piece), 0)
        else:
            shown[at : at + len(piece)] = piece
            at += len(piece)
    return bytes(shown)


class LongBar:
    """A bar of tqdm that lasts, as one for a whole training: its end would be too late for its first metric."""

    def __init__(self) -> None:
        self._head = ""
        self._percent = 0
        self._since = 0.0
        self._was_due = False

    def is_due(self, text: str, after_s: float, now: float) -> bool:
        """`text` is its state. A bar that starts again, or has another name, is another one."""
        found = _PERCENT.match(text)
        if found is None or namedvalues.split_of(found[1]) not in ("", "train"):
            return False
        head, percent = found[1], int(found[2])
        if head != self._head or percent < self._percent:
            self._since, self._was_due = now, False
        self._head, self._percent = head, percent
        if now - self._since < after_s:
            return False
        self._since, self._was_due = now, True
        return True

    def step(self, text: str) -> float | None:
        """What it has counted, once it has lasted: the bar of one epoch counts from 0 again."""
        found, counted = _PERCENT.match(text), _COUNTED.search(text)
        return float(counted[1]) if found and counted and self._was_due and found[1] == self._head else None


class PrintedPoints:
    """The output of a rank, as a source. A metric found by format alone waits a moment when it is new, and is dropped
    if the script reports the same name in another way: `reported` contains those names. Later points do not wait, so
    that they are in the store before a checkpoint that was saved after them."""

    def __init__(self, log: Path, rank: int, metrics: MetricPatterns, reported: set[str], tell: Tell) -> None:
        self.name = log.name
        self.behind = False
        self.guesses = True
        self.bar_s = BAR_S
        self.held_s = HELD_S  # less where the node is about to go: what waits would go with it
        self._file = GrowingFile(log)
        self._rank = rank
        self._patterns = {} if metrics == OFF else {name: compiled(text) for name, text in _mapping(metrics).items()}
        self._shapes = None if metrics == OFF else Shapes()
        self._lines = PrintedLines(every=bool(self._patterns), wants_all=self._wants_all)
        self._reported = reported
        self._tell = tell
        self._told: set[str] = set()
        self._held: deque[tuple[float, MetricPoint]] = deque()
        self._known: set[str] = set()  # names that have waited
        self._bar = LongBar()

    def _wants_all(self) -> bool:
        return self._shapes is not None and self._shapes.wants_all

    def objects_only(self) -> PrintedPoints:
        """For every rank but the first: its text output repeats the same metrics."""
        self._shapes = None
        return self

    def fresh(self, *, final: bool) -> Iterator[MetricPoint]:
        data = self._file.fresh(final=final)
        self.behind = self._file.behind
        for line in self._lines.feed(data, flood=self.behind) if data else ():
            yield from self._points(line)
        if data and not final and not self.behind:
            self._look_at_bar(self._lines.drawn())
        yield from self._due(time.monotonic() - self.held_s if not final or self.behind else math.inf)

    def _points(self, line: bytes) -> Iterator[MetricPoint]:
        now = time.time()
        if line.startswith(b"{") and (point := printed(line, now, self._rank)):
            self._reported.update(point.values)
            yield point
            return
        text = ESCAPES.sub("", line.decode(errors="replace"))
        own = self._matched(text)
        if own:
            yield MetricPoint(now, self._rank, _step(own.step), own.values)
        elif self._shapes and (found := self._shapes.read(text)):
            self._say(found, text)
            values = {name: one if math.isfinite(one) else None for name, one in found.values.items()}
            step = self._bar.step(text) if found.step is None else found.step
            self._held.append((time.monotonic(), MetricPoint(now, self._rank, _step(step), values)))

    def _look_at_bar(self, drawn: bytes) -> None:
        text = ESCAPES.sub("", drawn.decode(errors="replace")) if b"%|" in drawn else ""
        if not self._shapes or not text or not self._bar.is_due(text, self.bar_s, time.monotonic()):
            return
        if found := self._shapes.read(text):
            values = {name: one for name, one in found.values.items() if math.isfinite(one) and _SO_FAR.search(name)}
            if values:
                self._say(found, text)
                step = self._bar.step(text) if found.step is None else found.step
                self._held.append((time.monotonic(), MetricPoint(time.time(), self._rank, _step(step), values)))

    def _matched(self, text: str) -> LineMetrics | None:
        """What the job's own expressions match."""
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
        return LineMetrics("", step if step is not None else usual, values)

    def _timed(self, name: str, pattern: MetricPattern, text: str) -> Match | None:
        begun = time.perf_counter()
        match = pattern.find(text)
        took_s = time.perf_counter() - begun
        if took_s > SLOW_S:
            self._patterns = {key: one for key, one in self._patterns.items() if key != name}
            self._tell("metrics", f"the pattern of `{name}` took {took_s:.1f} s for one line: it is disabled")
        return match

    def _due(self, until: float) -> Iterator[MetricPoint]:
        """Points that have waited long enough, without those that the script has reported itself by now."""
        while self._held and (self._held[0][0] <= until or self._known.issuperset(self._held[0][1].values)):
            _, point = self._held.popleft()
            self._known.update(point.values)
            values = {name: value for name, value in point.values.items() if name not in self._reported}
            if values and set(values) != {"epoch"}:
                yield MetricPoint(point.at, point.rank, point.step, values)

    def _say(self, found: LineMetrics, text: str) -> None:
        if found.shape in self._told:
            return
        self._told.add(found.shape)
        names = ", ".join(list(found.values)[:8])
        line = text.strip() if len(text.strip()) <= 100 else text.strip()[:97] + "..."
        self._tell("metrics", f"metrics found in {found.shape}: {names} (in `{line}`)")


def _mapping(metrics: MetricPatterns) -> Mapping[str, str]:
    return metrics if isinstance(metrics, Mapping) else {}


def _step(step: float | None) -> float | None:
    return whole(step) if step is not None and math.isfinite(step) else None


# The progress in a script's output: epochs, steps and numbers in lines that it prints again and again.
#
# Two attempts whose counters overlap have done the same work twice, whatever the checkpoint between them contains.

MOST_COUNTERS = 64
MOST_TOLD = 6
MOST_POINTS = 24  # of one counter: enough to tell when it had which value
READ_BYTES = 32 << 10  # per look; of more output, the newest
LARGEST = 1e15
_NAMES = "global_step|epoch|step|iteration|iter|round|trial|generation|episode"
_UNITS = r"(?!\s*(?:%|[kKMGT]?i?B\b|(?:ms|s|sec|secs|seconds|m|min|minutes|h|hours)\b))"
_NUMBER = rf"(\d{{1,15}})(?![\d]*[.:]\d)(?!\d){_UNITS}"
_NAMED = re.compile(rf"(?:\b(\w+)\s+)?\b({_NAMES})\b[\"']?\s*[:=#\[(]*\s*{_NUMBER}", re.IGNORECASE)
_BRACKETED = re.compile(r"\[(\d{1,15})\]")
_LEADING = re.compile(rf"\W{{0,8}}([A-Za-z_][A-Za-z_ ]{{0,38}}?)[\s:=#\[(]+{_NUMBER}")
_NOT_HERE = re.compile(r"resum|restor|load|continu|checkpoint|\bfrom\b", re.IGNORECASE)  # describes an earlier value
_NOT_NOW = {"max", "total", "num", "number", "last", "best", "of", "per", "every"}


class Counter:
    """Values of one kind. One that decreases is a nested counter, and ignored."""

    def __init__(self, value: float, at: float) -> None:
        self.points = [(at, value)]
        self.inner = False

    def add(self, value: float, at: float) -> None:
        last = self.points[-1][1]
        if value > last:
            self.points.append((at, value))
            if len(self.points) > MOST_POINTS:
                self.points = [*self.points[:-1:2], self.points[-1]]
        elif value < last and len(self.points) == 1:  # the first was something else, such as a setting
            self.points = [(at, value)]
        elif value < last:
            self.inner = True


class Counters:
    """`add` and `see` are for one thread, `climbs` for any."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[str, Counter] = {}

    def see(self, point: MetricPoint) -> None:
        """Adds a reported metric."""
        if point.step is not None and point.values:
            self._add(f"step of {next(iter(point.values))}", point.step)
        for name in STEPS:
            if (value := point.values.get(name)) is not None:
                self._add(name, value)

    def read(self, line: str) -> None:
        """Adds a printed line."""
        for name, value in numbers(line):
            self._add(name, value)

    def climbs(self, since: float) -> tuple[Climb, ...]:
        """In seconds from a moment of the clock: well-known names first, then those with most values."""
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
    """The output lines of a rank, as a source of counters. It reports no points."""

    behind = guesses = False

    def __init__(self, file: Path, counters: Counters) -> None:
        self.name = file.name
        self._file = file
        self._counters = counters
        self._lines = Lines()
        self._offset = 0

    def fresh(self, *, final: bool) -> Iterator[MetricPoint]:  # noqa: ARG002  # as sources are asked
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
    """The counters in a line: `epoch 3`, `{"step": 12}`, `[5] rmse: 0.1`, or the words and number at its start."""
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
    """Its name says what it counts, so it goes before unknown ones."""
    return name.startswith("step of ") or name in _NAMES.split("|") or name == "[]"


def _is_now(word: str | None) -> bool:
    return (word or "").lower() not in _NOT_NOW
