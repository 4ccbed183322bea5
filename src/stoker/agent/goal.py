"""The target of `stop_when`: noticed among the points, then brought to a good end."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from stoker.agent.points import Point
from stoker.agent.ranks import Ranks
from stoker.agent.stopping import Stopping
from stoker.model.report import Outcome
from stoker.model.target import Target

PATIENCE_S = 30.0  # how long a script may go on after it has reached the target, to save what it has


class Goal:
    """Seen by one thread, acted upon by another.

    A script that catches SIGTERM is sent one and left to end by itself. Another one goes on until it reports the metric
    again: by then it has saved whatever it saves after each report.
    """

    def __init__(self, target: Target | None, stop_file: Path, tell: Callable[[str, str], None]) -> None:
        self._target = target
        self._stop_file = stop_file
        self._tell = tell
        self._value = 0.0
        self._by: tuple[str, int] | None = None  # the source and the rank that reached it
        self._again = False
        self._told_at = 0.0
        self._signalled = False

    @property
    def reached(self) -> bool:
        return self._by is not None

    def __str__(self) -> str:
        return f"`{self._target}` was reached with {self._value:g}"

    def see(self, point: Point, source: str) -> None:
        value = point.values.get(self._target.metric) if self._target else None
        if value is None or self._target is None:
            return
        if self._by is None:
            if self._target.reached_by(value):
                self._value = value
                self._by = (source, point.rank)
        elif self._by == (source, point.rank):
            self._again = True

    def act(self, ranks: Ranks, stopping: Stopping) -> None:
        """To be called often, by the thread that watches the ranks."""
        if self._by is None:
            return
        if not self._told_at:
            self._told_at = time.monotonic()
            self._stop_file.touch()
            self._tell("target-reached", str(self))
            self._signalled = ranks.tell(ranks.listeners())
        passed_s = time.monotonic() - self._told_at
        if passed_s >= PATIENCE_S or (self._again and not self._signalled):
            stopping.ask(Outcome.TARGET_REACHED, str(self))
