"""A thread of the agent that works until it is told to finish."""

from __future__ import annotations

import sys
import threading
import time

LOOK_S = 0.1  # within which a worker that pauses sees that somebody waits


class Worker:
    """Subclasses say what to do in `work`, which returns soon after `ending` is set and everything is done."""

    def __init__(self, name: str) -> None:
        self.ending = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Twice is fine."""
        if not self._thread.ident:
            self._thread.start()

    def finish(self) -> None:
        """Waits until the work is done, however long that takes. A bug in it is raised here, so that it is not lost."""
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


class Shipper(Worker):
    """A worker that writes to the store at its own pace, and at once when somebody waits for it."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._answering = threading.Condition()
        self._answered = 0
        self.asked = 0  # how many have waited, or do
        self.hurried = False  # all of it counts, whatever a write costs

    @property
    def awaited(self) -> bool:
        return self.asked > self._answered

    def catch_up(self, limit_s: float) -> None:
        """Returns when all that there is now is in the store, or after so long. For any thread but its own."""
        with self._answering:
            if self._thread.is_alive():
                self.asked += 1
                mine = self.asked
                self._answering.wait_for(lambda: self._answered >= mine, limit_s)

    def answer(self, asked: int) -> None:
        """Whoever had asked before the last look need not wait any more."""
        if asked > self._answered:
            with self._answering:
                self._answered = asked
                self._answering.notify_all()

    def pause(self, seconds: float, asked: int) -> None:
        """Shorter where it is to end, where a hurry begins, or where somebody has come to wait that it does not know
        of: it knew of `asked`. Whoever still waits while the store refuses everything is no reason to hurry."""
        until, hurried = time.monotonic() + seconds, self.hurried
        while (self.asked, self.hurried) == (asked, hurried) and (left := until - time.monotonic()) > 0:
            if self.ending.wait(min(left, LOOK_S)):
                return
