"""Runs pytest, and says which tests are running and for how long: every two minutes, and when they are cut off."""

from __future__ import annotations

import signal
import sys
import time
from contextlib import suppress
from types import FrameType

import pytest

EVERY_S = 120.0
SLOWEST = 10


class Progress:
    """A plugin of the process that starts the workers: it hears of their tests."""

    def __init__(self) -> None:
        self._reporter: pytest.TerminalReporter | None = None
        self._began = self._told = time.monotonic()
        self._running: dict[str, float] = {}  # by name: since when
        self._took: dict[str, float] = {}  # by name: seconds
        self._done = 0

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        self._reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        signal.signal(signal.SIGTERM, self._terminated)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._running[nodeid] = time.monotonic()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._took[report.nodeid] = self._took.get(report.nodeid, 0.0) + report.duration

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._running.pop(nodeid, None)
        self._done += 1
        if time.monotonic() - self._told > EVERY_S:
            self._told = time.monotonic()
            self._write(self._state())

    def _terminated(self, _number: int, _frame: FrameType | None) -> None:
        """Told at once: pytest waits for its workers before it says anything, and whoever ends us may not."""
        slowest = sorted(((took, name) for name, took in self._took.items()), reverse=True)[:SLOWEST]
        lines = [f"{took:8.2f}s {name}" for took, name in slowest]
        with suppress(RuntimeError):  # in the middle of another line
            self._write("\n".join([f"CUT OFF: {self._state()}", "slowest so far:", *lines]))
        raise KeyboardInterrupt

    def _state(self) -> str:
        now = time.monotonic()
        running = [f"{name} for {now - since:.0f} s" for name, since in self._running.items()]
        return f"{self._done} tests done after {now - self._began:.0f} s; running: {', '.join(running) or 'none'}"

    def _write(self, text: str) -> None:
        if self._reporter:
            self._reporter.write_line(f"\n{text}")  # behind the dots of xdist
            self._reporter.flush()


if __name__ == "__main__":
    sys.exit(pytest.main(sys.argv[1:], plugins=[Progress()]))
