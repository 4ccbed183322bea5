"""Virtual time: which event is next, and when. Years pass in seconds, because nothing waits."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

START = datetime(2026, 1, 1, tzinfo=UTC)

Happening = Callable[[], None]


class Timeline:
    def __init__(self) -> None:
        self.now = 0.0  # seconds
        self._coming: list[tuple[float, int, Happening]] = []
        self._count = 0  # of two events at the same moment, the one planned first comes first

    def at(self, when: float, happening: Happening) -> None:
        self._count += 1
        heapq.heappush(self._coming, (max(when, self.now), self._count, happening))

    def after(self, seconds: float, happening: Happening) -> None:
        self.at(self.now + seconds, happening)

    def step(self) -> bool:
        """Executes the next event. False when there is none."""
        if not self._coming:
            return False
        self.now, _, happening = heapq.heappop(self._coming)
        happening()
        return True


def moment(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)
