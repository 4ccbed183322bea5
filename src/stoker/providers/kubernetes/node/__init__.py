"""What the agent needs to know in a pod, shipped with it: SIGTERM is the notice of an eviction."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from queue import SimpleQueue
from types import FrameType

from stoker.agent.machine.cloud import CloudListener, SelfRemoval
from stoker.model.orders import Notice

SEEN_S = 5.0  # for the server to read from the pod why it is evicted: with the agent, the pod disappears
EVERY_S = 0.2


class PodNotices:
    """`grace` is what the pod's own setting says, in seconds; whoever ends it may allow less, and does not say so."""

    def __init__(self, grace: str, warn: Callable[[Notice | None], None]) -> None:
        self._grace = timedelta(seconds=float(grace))
        self._warn = warn
        self._told: SimpleQueue[bool] = SimpleQueue()  # a signal handler may put: it takes no lock
        self._term_at: datetime | None = None

    def start(self) -> None:
        """In the main thread, after the agent's own handlers: SIGTERM does not end the agent at once."""
        signal.signal(signal.SIGTERM, self._terminated)
        threading.Thread(target=self._run, name="kubernetes", daemon=True).start()

    def finish(self) -> None:
        self._told.put(False)

    def approve(self) -> None:
        """No pod returns by itself."""

    def stay(self) -> None:
        until = time.monotonic() + SEEN_S
        while self._term_at and datetime.now(UTC) < self._term_at + self._grace / 2 and time.monotonic() < until:
            time.sleep(EVERY_S)

    def _terminated(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002  # as signal handlers are
        self._term_at = self._term_at or datetime.now(UTC)
        self._told.put(True)

    def _run(self) -> None:
        if self._told.get() and self._term_at:
            self._warn(Notice(self._term_at, self._term_at + self._grace, drill=False))


@dataclass(frozen=True, slots=True)
class NothingToDelete:
    """A pod ends with its agent."""

    def carry_out(self) -> None:
        return


def listen(url: str, warn: Callable[[Notice | None], None], tell: Callable[[str, str], None]) -> CloudListener:  # noqa: ARG001  # as every cloud's
    return PodNotices(url, warn)


def removal(settings: Mapping[str, str]) -> SelfRemoval:  # noqa: ARG001  # as every cloud's
    return NothingToDelete()
