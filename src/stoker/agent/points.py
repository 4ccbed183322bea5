"""Metric points: what a script reports, from a printed line or a line of `stoker.log`, and a summary of many. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from stoker.model.report import MetricSummary

LONGEST_LINE = 64 << 10
STEPS = ("step", "global_step", "iteration", "epoch")  # the first of these that a line has is its step
LONGEST_NAME = 200
MOST_METRICS = 1000  # names in a summary; the points themselves are all kept


@dataclass(frozen=True, slots=True)
class Point:
    """Values reported together. None stands for a number that JSON cannot hold: not a number, or infinite."""

    at: float  # unix seconds
    rank: int
    step: float | None
    values: Mapping[str, float | None]

    def named(self, rename: Callable[[str], str]) -> Point:
        return replace(self, values={rename(name): value for name, value in self.values.items()})

    def line(self) -> bytes:
        return json.dumps({"at": self.at, "step": self.step, "rank": self.rank, "values": self.values}).encode() + b"\n"


def printed(line: bytes, at: float, rank: int) -> Point | None:
    """The point in a line of output: a JSON object with at least one finite number. None for any other line."""
    found = _object(line)
    if not found:
        return None
    flat: dict[str, Any] = {}
    for name, value in found.items():
        inner = value.items() if isinstance(value, dict) else ()
        flat |= {f"{name}/{key}": item for key, item in inner} or {name: value}
    numbers = {_name(name): float(value) for name, value in flat.items() if _is_number(value)}
    if not any(map(math.isfinite, numbers.values())):
        return None
    step_name = next((name for name in STEPS if math.isfinite(numbers.get(name, math.nan))), "")
    step = _whole(numbers.pop(step_name)) if step_name else None
    return Point(at, rank, step, {name: _finite(value) for name, value in numbers.items()}) if numbers else None


def logged(line: bytes) -> Point | None:
    """The point in a line that `stoker.log` wrote. None for a line it did not write."""
    found = _object(line) or {}
    at, rank, step, values = (found.get(name) for name in ("at", "rank", "step", "values"))
    if not isinstance(at, float) or not isinstance(rank, int) or not isinstance(values, dict):
        return None
    numbers = {_name(name): _finite(float(value)) if _is_number(value) else None for name, value in values.items()}
    return Point(at, rank, _whole(float(step)) if step is not None and _is_number(step) else None, numbers)


class Lines:
    """Whole lines out of pieces of output; with `objects_only` just those that may be JSON objects."""

    def __init__(self, *, objects_only: bool = False) -> None:
        self._needle = b"\n{" if objects_only else b"\n"
        self._kept = b"\n"  # a line that has begun, with the break before it; empty: its rest is of no interest

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Cheap for output that holds no objects: it is only searched."""
        text = self._kept + data if self._kept else data
        start = 0 if self._kept else text.find(b"\n")
        while start >= 0:
            start = text.find(self._needle, start)
            end = text.find(b"\n", start + 1) if start >= 0 else -1
            if end < 0:
                break
            if end - start <= LONGEST_LINE:
                yield text[start + 1 : end]
            start = end
        self._kept = self._rest(text, start)

    def _rest(self, text: bytes, start: int) -> bytes:
        if start < 0 and text.endswith(b"\n"):
            return b"\n"
        return text[start:] if start >= 0 and len(text) - start <= LONGEST_LINE else b""


class Summaries:
    def __init__(self) -> None:
        self._known: dict[str, MetricSummary] = {}

    def add(self, point: Point) -> None:
        for name, value in point.values.items():
            if value is None or (name not in self._known and len(self._known) >= MOST_METRICS):
                continue
            was = self._known.get(name) or MetricSummary(value, value, value, 0)
            least, most = min(was.least, value), max(was.most, value)
            self._known[name] = MetricSummary(value, least, most, was.count + 1, point.step)

    def now(self) -> dict[str, MetricSummary]:
        return dict(self._known)


def _object(line: bytes) -> dict[str, Any] | None:
    if not line.startswith(b"{") or len(line) > LONGEST_LINE:
        return None
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return isinstance(value, float) or abs(value) < 1 << 1023  # a larger one has no float


def _name(name: str) -> str:
    """A name that can be stored and shown, whatever the script made of it."""
    return name[:LONGEST_NAME].encode(errors="replace").decode()


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _whole(value: float) -> float | None:
    """A step as people write it: 3, not 3.0."""
    return (int(value) if value.is_integer() else value) if math.isfinite(value) else None
