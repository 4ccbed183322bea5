"""Why an attempt must end before its script does: requested by any thread, handled by the one that runs the ranks."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from datetime import UTC, datetime
from types import FrameType
from typing import Protocol, runtime_checkable

from stoker.agent.processes.family import readable
from stoker.errors import Missing, StokerError
from stoker.model import untrusted
from stoker.model.cause import Cause
from stoker.model.orders import Notice, Orders, Visit, Wish, Wishes
from stoker.model.run.money import Fuse
from stoker.model.run.report import Outcome
from stoker.model.workspace import layout
from stoker.stores import Store, pacing

# Signals of the tenant to its agent: neither is caused by the script.
LEASE_OVER, GOING_DOWN = signal.SIGUSR1, signal.SIGUSR2
_LEAVING = {
    LEASE_OVER: ("the lease of its machine expired, or its allocation reached its time limit", False, Cause.LEASE_OVER),
    GOING_DOWN: ("its machine was shut down", True, Cause.MACHINE_SHUT_DOWN),
}

EAGER_S, EAGER_EVERY_S = 30.0, 0.5  # how long, and how often, a node with a tight budget looks for wishes


class Stopped(Exception):
    """Raised where preparation was interrupted. `Stopping` knows why."""


class NeedsRestart(Stopped):
    """The machine requires a restart, and nothing else is missing."""


class Stopping:
    """The first reason counts. A wait ends early for a reason, and for every signal, such as the exit of a child."""

    def __init__(self) -> None:
        self.outcome: Outcome | None = None
        self.message = ""
        self.cause = ""  # a `Cause`; empty: the outcome says it all
        self.stays = False  # the machine is restarted, and will be available to the next attempt
        self._lock = threading.Lock()
        self._wakes, self._wake = os.pipe()
        for fd in (self._wakes, self._wake):
            os.set_blocking(fd, False)

    def ask(self, outcome: Outcome, message: str, cause: str = "") -> None:
        with self._lock:
            if self.outcome is None:
                self.message, self.cause = message, cause
                self.outcome = outcome
        with suppress(BlockingIOError):
            os.write(self._wake, b"!")

    def check(self) -> None:
        if self.outcome:
            raise Stopped

    def wait(self, seconds: float) -> None:
        if readable([self._wakes], seconds):
            os.read(self._wakes, 4096)

    def heed_signals(self) -> None:
        """SIGTERM to the agent ends the attempt cleanly. Only from the main thread.

        Handlers in place of SIG_IGN also make sure that no rank inherits an ignored signal.
        """
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._terminated)
        for number in _LEAVING:
            signal.signal(number, self._leaving)
        for number in (signal.SIGCHLD, signal.SIGHUP):
            signal.signal(number, _nothing)
        signal.signal(signal.SIGQUIT, signal.SIG_DFL)

    def _terminated(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002  # as signal handlers are
        if self.outcome is None:  # no lock: the handler may interrupt its holder
            self.message = f"the agent was stopped ({signal.Signals(number).name})"
            self.cause = Cause.AGENT_STOPPED
            self.outcome = Outcome.CANCELLED

    def _leaving(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002  # as signal handlers are
        if self.outcome is None:
            self.message, self.stays, self.cause = _LEAVING[signal.Signals(number)]
            self.outcome = Outcome.EVICTED


class WishWatch:
    """A thread that polls the server's wishes."""

    def __init__(
        self,
        store: Store,
        orders: Orders,
        stopping: Stopping,
        heed: Callable[[Notice | None], None],
        visits: Callable[[Collection[Visit]], None],
        spend: Callable[[Fuse | None, float], None] = lambda _fuse, _age_s: None,
    ) -> None:
        self._store = store
        self._heed = heed
        self._visits = visits
        self._spend = spend
        self._read_at = time.monotonic()  # start of the last look with an answer: nothing existed before
        self._key = layout.wishes(orders.run_id, orders.attempt, orders.node)
        self._eager_until = time.monotonic() + EAGER_S if orders.fuse else 0.0
        self._stopping = stopping
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="wishes", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        self._done.set()

    def _run(self) -> None:
        while not self._done.wait(self._pause_s):
            with suppress(StokerError, ValueError, KeyError, TypeError):  # forged, absent or unreachable: continue
                began, before = time.monotonic(), self._read_at
                wishes = self._read()
                self._read_at = began
                # What did not exist at the last look is not older than that: no two clocks are compared.
                self._spend(wishes.fuse, began - before)
                self._heed(wishes.notice)
                self._visits(wishes.visits)
                if wishes.broken:
                    self._stopping.ask(Outcome.PEER_ENDED, wishes.broken)
                if wishes.hung:
                    self._stopping.ask(Outcome.FAILED, wishes.hung, Cause.HUNG)
                if wishes.wish is Wish.CANCEL:
                    self._stopping.ask(Outcome.CANCELLED, wishes.reason or "the run was cancelled", Cause.CANCELLED)
                    return

    @property
    def _pause_s(self) -> float:
        """Short at first where the node has a budget limit: its figures are then more recent."""
        usual_s = pacing(self._store).wishes_s
        return min(usual_s, EAGER_EVERY_S) if time.monotonic() < self._eager_until else usual_s

    def _read(self) -> Wishes:
        try:
            return untrusted.load(Wishes, hear(self._store, self._key), datetime.now(UTC))  # the script can write it
        except Missing:
            return Wishes()


def _nothing(number: int, frame: FrameType | None) -> None:
    """Wakes up waiting threads."""


# Messages of the server to a node: over a network only signed ones count, since others may write there.


@runtime_checkable
class Hearing(Protocol):
    def heard(self, key: str) -> bytes: ...


def hear(store: Store, key: str) -> bytes:
    """Raises errors of the store, and Corrupt where another writer has forged it."""
    return store.heard(key) if isinstance(store, Hearing) else store.get(key)
