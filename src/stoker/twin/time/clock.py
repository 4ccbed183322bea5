"""The twin's time: seconds since its first start. It stops while the twin is down and may run faster."""

from __future__ import annotations

import time
from datetime import UTC, datetime


class TwinClock:
    """`now` counts the twin's seconds; `wall` converts one to wall-clock time."""

    def __init__(self, start: float = 0.0, speed: float = 1.0) -> None:
        self._anchor = (start, time.time(), time.monotonic())
        self._speed = speed

    @property
    def speed(self) -> float:
        return self._speed

    def now(self) -> float:
        start, _, since = self._anchor
        return start + (time.monotonic() - since) * self._speed

    def set_speed(self, speed: float) -> None:
        self._anchor = (self.now(), time.time(), time.monotonic())
        self._speed = speed

    def real_s(self, twin_s: float) -> float:
        return twin_s / self._speed

    def wall(self, moment: float) -> datetime:
        start, unix, _ = self._anchor
        return datetime.fromtimestamp(unix + (moment - start) / self._speed, UTC)
