"""How often to look and how long to wait before a retry: intervals that depend on the last result."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from stoker.errors import StokerError, StoreUnavailable

T = TypeVar("T")

UNAVAILABLE_S = 900.0  # how long the store may be unreachable at the start


class LookPause:
    """The pause between two looks: short after something was found, growing while nothing is."""

    def __init__(self, shortest_s: float, longest_s: float) -> None:
        self._shortest_s = shortest_s
        self._longest_s = longest_s
        self._pause_s = shortest_s

    def after(self, found: bool) -> float:
        self._pause_s = self._shortest_s if found else min(self._pause_s * 1.5, self._longest_s)
        return self._pause_s


@dataclass
class StoreTrouble:
    """The times when the store was not writable, for the final report. Shared by the writing threads."""

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
        return f"the store was not writable for {self.seconds:.0f} s: {self.reason}" if self.reason else ""


class Patience:
    """Waits longer after every failure in a row, and knows when the next retry is due."""

    def __init__(self, who: str, trouble: StoreTrouble) -> None:
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
    """The result of the work, once the store is reachable. `check` may raise to stop waiting."""
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


# A thread of the agent that works until it is asked to finish.

LOOK_S = 0.1  # within which a pausing worker notices that a caller waits


class ShippingThread:
    """Subclasses implement `work`, which returns soon after `ending` is set and everything is done."""

    def __init__(self, name: str) -> None:
        self.ending = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Calling it twice is fine."""
        if not self._thread.ident:
            self._thread.start()

    def finish(self) -> None:
        """Waits until the work is done, however long that takes. Raises an exception of the thread here, so that it is
        not lost."""
        self.ending.set()
        if self._thread.ident:
            self._thread.join()
        if self._failure:
            raise self._failure

    def work(self) -> None:
        raise NotImplementedError

    def _run(self) -> None:
        try:
            self.work()
        except Exception as error:
            sys.excepthook(*sys.exc_info())
            self._failure = error


class Shipper(ShippingThread):
    """A worker that uploads at its own pace, and at once while a caller waits for it."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._answering = threading.Condition()
        self._answered = 0
        self.asked = 0  # how many have waited, or do
        self.hurried = False  # upload everything, whatever a write costs

    @property
    def awaited(self) -> bool:
        return self.asked > self._answered

    def catch_up(self, limit_s: float) -> None:
        """Returns when everything so far is in the store, or after so long. For any thread but its own."""
        with self._answering:
            if self._thread.is_alive():
                self.asked += 1
                mine = self.asked
                self._answering.wait_for(lambda: self._answered >= mine, limit_s)

    def answer(self, asked: int) -> None:
        """Those who asked before the last look need not wait any more."""
        if asked > self._answered:
            with self._answering:
                self._answered = asked
                self._answering.notify_all()

    def pause(self, seconds: float, asked: int) -> None:
        """Shorter at the end, in a hurry, or when another thread starts to wait: `asked` were known before. Threads
        that wait while the store refuses everything are no reason to hurry."""
        until, hurried = time.monotonic() + seconds, self.hurried
        while (self.asked, self.hurried) == (asked, hurried) and (left := until - time.monotonic()) > 0:
            if self.ending.wait(min(left, LOOK_S)):
                return
