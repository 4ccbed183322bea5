"""How often to save: every so many steps, epochs or seconds, or as often as evictions make it worth. Pure."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

SUPPOSED_EVICTIONS_PER_HOUR = 0.1  # where nobody has counted: one in ten hours
_SHORTEST_S = 1.0
_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0}
_TIME = re.compile(r"(\d+(?:\.\d+)?)\s*([smh])")
_EPOCHS = re.compile(r"(\d+)\s*epochs?")


@dataclass(frozen=True, slots=True)
class Interval:
    """One of the three is set; none of them means `auto`."""

    steps: int | None = None
    epochs: int | None = None
    seconds: float | None = None

    @property
    def auto(self) -> bool:
        return self.steps is None and self.epochs is None and self.seconds is None


@dataclass(frozen=True, slots=True)
class Cost:
    """What the last save took: the training waited `blocked_s`, and the bytes were safe after `written_s`."""

    blocked_s: float = 0.0
    written_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Since:
    """What has happened since the last save."""

    steps: int
    epochs: int
    seconds: float


def parse(every: int | str) -> Interval:
    """`100`, `"2 epochs"`, `"30s"`, `"5m"`, `"1h"` or `"auto"`."""
    if isinstance(every, int) and not isinstance(every, bool):
        if every >= 1:
            return Interval(steps=every)
    elif isinstance(every, str):
        text = every.strip().lower()
        if text == "auto":
            return Interval()
        if (found := _EPOCHS.fullmatch(text)) and int(found[1]) >= 1:
            return Interval(epochs=int(found[1]))
        if _TIME.fullmatch(text):
            return Interval(seconds=seconds(text))
    raise ValueError(f'every={every!r}: expected a number of steps, "1 epoch", a time such as "30s" or "5m", or "auto"')


def seconds(text: str | float) -> float:
    """`"5m"` is 300. A number is seconds already."""
    if isinstance(text, int | float):
        return float(text)
    found = _TIME.fullmatch(text.strip().lower())
    if not found:
        raise ValueError(f'{text!r} is not a time: expected "30s", "5m" or "1h"')
    return float(found[1]) * _UNITS_S[found[2]]


def best_interval_s(cost: Cost, evictions_per_hour: float, max_loss_s: float) -> float:
    """Young's and Daly's: the time between saves at which saving and losing work cost the same.

    Never longer than `max_loss_s`, and never so short that a save has not been written when the next is due.
    """
    shortest_s = max(_SHORTEST_S, 2 * cost.written_s)
    if evictions_per_hour <= 0:
        return max(max_loss_s, shortest_s)
    between_evictions_s = min(3600 / evictions_per_hour, 1e12)
    return max(min(math.sqrt(2 * cost.blocked_s * between_evictions_s), max_loss_s), shortest_s)


def due(interval: Interval, since: Since, auto_s: float) -> bool:
    """Whether it is time; `auto_s` is what `best_interval_s` says now."""
    if interval.steps is not None:
        return since.steps >= interval.steps
    if interval.epochs is not None:
        return since.epochs >= interval.epochs
    return since.seconds >= (auto_s if interval.seconds is None else interval.seconds)
