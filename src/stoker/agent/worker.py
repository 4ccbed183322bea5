"""A thread of the agent that works until it is told to finish."""

from __future__ import annotations

import sys
import threading


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
