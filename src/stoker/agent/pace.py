"""How often to look and how long to wait before trying again: intervals that know what happened last."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from stoker.errors import StokerError, StoreUnavailable

T = TypeVar("T")

UNAVAILABLE_S = 900.0  # for how long a store that is needed to begin with may be out of reach


class Pace:
    """The pause between two looks: short after something was found, and longer while nothing is."""

    def __init__(self, shortest_s: float, longest_s: float) -> None:
        self._shortest_s = shortest_s
        self._longest_s = longest_s
        self._pause_s = shortest_s

    def after(self, found: bool) -> float:
        self._pause_s = self._shortest_s if found else min(self._pause_s * 1.5, self._longest_s)
        return self._pause_s


@dataclass
class Trouble:
    """The times when the store could not be written, for the last report. Shared by the threads that write."""

    reason: str = ""
    seconds: float = 0.0
    _since: dict[str, float] = field(default_factory=dict)

    def failed(self, who: str, error: StokerError) -> None:
        self.reason = error.message
        self._since.setdefault(who, time.monotonic())

    def worked(self, who: str) -> None:
        if since := self._since.pop(who, None):
            self.seconds = max(self.seconds, time.monotonic() - since)

    def __str__(self) -> str:
        return f"the store could not be written for {self.seconds:.0f} s: {self.reason}" if self.reason else ""


class Patience:
    """Waits longer after every failure in a row, and knows when the next try is due."""

    def __init__(self, who: str, trouble: Trouble) -> None:
        self._who = who
        self._trouble = trouble
        self._pause_s = 0.0
        self._due = 0.0

    @property
    def due(self) -> bool:
        return not self._due or time.monotonic() >= self._due

    def failed(self, error: StokerError) -> None:
        self._trouble.failed(self._who, error)
        self._pause_s = min(max(self._pause_s * 2, 0.1), 5.0)
        self._due = time.monotonic() + self._pause_s

    def worked(self) -> None:
        if self._due:
            self._trouble.worked(self._who)
            self._pause_s = self._due = 0.0


def persist(work: Callable[[], T], check: Callable[[], None] = lambda: None) -> T:
    """What the work gives, once the store can be reached. `check` may raise to end the waiting."""
    give_up, pause_s = time.monotonic() + UNAVAILABLE_S, 0.2
    while True:
        try:
            return work()
        except StoreUnavailable:
            if time.monotonic() >= give_up:
                raise
        check()
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 5.0)
