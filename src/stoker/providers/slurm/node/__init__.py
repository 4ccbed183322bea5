"""What the agent needs to know inside a Slurm allocation, shipped with it: the notices of the time limit and of
preemption."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from queue import Empty, SimpleQueue
from types import FrameType

from stoker.agent.machine.cloud import CloudListener, SelfRemoval
from stoker.agent.notice.stopping import LEASE_OVER
from stoker.model.orders import Notice

EVERY_S = 0.2
LONGEST_STAY_S = 3600.0  # behind a SIGTERM that nothing follows


class AllocationNotices:
    """`place` is `LEAD:GRACE:FOLDER`: seconds from the notice of the time limit to its end, seconds from SIGTERM to
    SIGKILL, and the folder of the allocation, where the batch script writes the file `notice`."""

    def __init__(self, place: str, warn: Callable[[Notice | None], None]) -> None:
        lead, grace, folder = place.split(":", 2)
        self._lead_s, self._grace_s = float(lead), float(grace)
        self._folder = Path(folder)
        self._warn = warn
        self._told: SimpleQueue[bool] = SimpleQueue()  # a signal handler may put: it takes no lock
        self._term_at: datetime | None = None
        self._limit_at: datetime | None = None
        self._over = False  # the time limit is reached
        self._leave: object = None  # what the agent does when it has to

    def start(self) -> None:
        """In the main thread, after the agent's own handlers: SIGTERM is Slurm's notice and does not end the agent."""
        signal.signal(signal.SIGTERM, self._terminated)
        self._leave = signal.signal(LEASE_OVER, self._near_limit)
        threading.Thread(target=self._run, name="slurm", daemon=True).start()

    def finish(self) -> None:
        self._told.put(False)

    def approve(self) -> None:
        """No machine returns by itself here."""

    def stay(self) -> None:
        """A preempted job that ends by itself counts as completed, and a cancelled one as evicted: so the agent stays
        until it is killed, and Slurm says what it was."""
        until = time.monotonic() + LONGEST_STAY_S
        while self._term_at and time.monotonic() < until:
            time.sleep(EVERY_S)

    def _terminated(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002  # as signal handlers are
        self._term_at = self._term_at or datetime.now(UTC)
        self._told.put(True)

    def _near_limit(self, number: int, frame: FrameType | None) -> None:
        """The second time is our own, at the time limit: the next allocation need not wait until Slurm enforces it."""
        if self._over and callable(self._leave):
            self._leave(number, frame)
        self._limit_at = self._limit_at or datetime.now(UTC)
        self._told.put(True)

    def _run(self) -> None:
        while self._heard():
            if self._limit_at is None and "notice" in os.listdir(self._folder):  # noqa: PTH208  # names are all it needs
                self._limit_at = datetime.now(UTC)
            if self._term_at:
                self._warn(Notice(self._term_at, self._term_at + timedelta(seconds=self._grace_s), drill=False))
            elif self._limit_at:
                until = self._limit_at + timedelta(seconds=self._lead_s)
                self._warn(Notice(self._limit_at, until, drill=False))
                if datetime.now(UTC) >= until and not self._over:
                    self._over = True
                    os.kill(os.getpid(), LEASE_OVER)

    def _heard(self) -> bool:
        """Waits for a signal, or for the time to look for the file; False: no notice matters any more."""
        try:
            return self._told.get(timeout=EVERY_S)
        except Empty:
            return True


@dataclass(frozen=True, slots=True)
class NothingToRemove:
    """An allocation ends with its agent."""

    def carry_out(self) -> None:
        return


def listen(url: str, warn: Callable[[Notice | None], None], tell: Callable[[str, str], None]) -> CloudListener:  # noqa: ARG001  # as every cloud's
    return AllocationNotices(url, warn)


def removal(settings: Mapping[str, str]) -> SelfRemoval:  # noqa: ARG001  # as every cloud's
    return NothingToRemove()
