"""Metric points: what a script reports, from a printed line or a line of `stoker.log`, and a summary of many. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from stoker.model.run.report import MetricSummary
from stoker.model.untrusted import LARGEST_STEP

LONGEST_LINE = 64 << 10
STEPS = ("step", "global_step", "iteration", "epoch")  # the first of these in a line is its step
LONGEST_NAME = 200
MOST_METRICS = 1000  # names in a summary; all points are kept
PROGRESS, TOTAL_STEPS, TOTAL_EPOCHS = "progress", "total_steps", "total_epochs"  # how a script reports its progress


@dataclass(frozen=True, slots=True)
class MetricPoint:
    """Values reported together. None stands for a number that JSON cannot represent: NaN or infinity."""

    at: float  # unix seconds
    rank: int
    step: float | None
    values: Mapping[str, float | None]

    def named(self, rename: Callable[[str], str]) -> MetricPoint:
        return replace(self, values={rename(name): value for name, value in self.values.items()})

    def line(self) -> bytes:
        return json.dumps({"at": self.at, "step": self.step, "rank": self.rank, "values": self.values}).encode() + b"\n"


def printed(line: bytes, at: float, rank: int) -> MetricPoint | None:
    """The point in a line of output: a JSON object with at least one finite number. None for any other line."""
    numbers = dict(_numbers(_object(line) or {}))
    if not any(map(math.isfinite, numbers.values())):
        return None
    step = None
    for name in STEPS:
        if math.isfinite(numbers.get(name, math.nan)):
            step = whole(numbers.pop(name))
            break
    values = {name: value if math.isfinite(value) else None for name, value in numbers.items()}
    return MetricPoint(at, rank, step, values) if values else None


def logged(line: bytes) -> MetricPoint | None:
    """The point in a line of `stoker.log`. None for any other line."""
    found = _object(line) or {}
    at, rank, step, values = (found.get(name) for name in ("at", "rank", "step", "values"))
    if not isinstance(at, float) or not isinstance(rank, int) or not isinstance(values, dict):
        return None
    numbers = {storable(name): float(value) if _is_number(value) else None for name, value in values.items()}
    return MetricPoint(at, rank, whole(float(step)) if step is not None and _is_number(step) else None, numbers)


def progress(point: MetricPoint) -> float | None:
    """The progress that the script reports, 0 to 1: `progress` itself, or a step or epoch with its total."""
    values, step = point.values, point.step
    told = values.get(PROGRESS)
    if told is not None:
        return told if 0.0 <= told <= 1.0 else None
    for total, reached in ((values.get(TOTAL_STEPS), step), (values.get(TOTAL_EPOCHS), values.get("epoch", step))):
        if total is not None and reached is not None and 0.0 <= reached <= total and total > 0:
            return reached / total
    return None


class Lines:
    """Complete lines from pieces of output; with `objects_only` just those that may be JSON objects."""

    def __init__(self, *, objects_only: bool = False) -> None:
        self._needle = b"\n{" if objects_only else b"\n"
        self._kept = b"\n"  # an incomplete line, with the break before it; empty: its rest is ignored

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Cheap for output without objects: it is only searched."""
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
        self._known: dict[str, tuple[float, float, float, int, float | None]] = {}

    def add(self, point: MetricPoint) -> None:
        for name, value in point.values.items():
            if value is None or (name not in self._known and len(self._known) >= MOST_METRICS):
                continue
            _, least, most, count, _ = self._known.get(name) or (value, value, value, 0, None)
            self._known[name] = (value, min(least, value), max(most, value), count + 1, point.step)

    def now(self) -> dict[str, MetricSummary]:
        """Other threads than the one that adds may call it."""
        return {name: MetricSummary(*known) for name, known in self._known.copy().items()}


def _object(line: bytes) -> dict[str, Any] | None:
    if not line.startswith(b"{") or len(line) > LONGEST_LINE:
        return None
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _numbers(found: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """The numbers in an object, and one level deeper with both names."""
    for name, value in found.items():
        if _is_number(value):
            yield storable(name), float(value)
        elif isinstance(value, dict):
            yield from ((storable(f"{name}/{key}"), float(item)) for key, item in value.items() if _is_number(item))


def _is_number(value: Any) -> bool:
    """Numbers as in JSON, except for integers that no float can represent."""
    return type(value) is float or (type(value) is int and abs(value) < 1 << 1023)


def storable(name: str) -> str:
    """A name that can be stored and shown."""
    if name.isascii() and len(name) <= LONGEST_NAME:
        return name
    return name[:LONGEST_NAME].encode(errors="replace").decode()


def whole(value: float) -> float | None:
    """A step as people write it: 3, not 3.0. None where it is not a count."""
    return (int(value) if value.is_integer() else value) if abs(value) <= LARGEST_STEP else None
