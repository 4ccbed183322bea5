"""The thread that commits complete checkpoints, and hurries when the node is about to be evicted."""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable

from stoker.agent.checkpoints.commits import Checkpoints
from stoker.agent.checkpoints.folders.choosing import Care
from stoker.agent.shipping.worker import Patience, ShippingThread, StoreTrouble
from stoker.errors import AlreadyThere, StokerError, StoreFailed
from stoker.model.snapshot import CheckpointSet

EVERY_S = 0.25
EVERY_RESTLESS_S = 0.1
EVERY_HURRIED_S = 0.05
SHARE = 20  # looking takes at most 1/20 of the time
LONGEST_S = 5.0
HURRY_S = 2.0  # how long to hurry while no file becomes complete
INSURE_S = 5.0  # the same for the first commit after a notice

Tell = Callable[[str, str], None]


class Keeper(ShippingThread):
    """Training never waits for it. Its failures are reported, not raised."""

    def __init__(
        self, checkpoints: Checkpoints, trouble: StoreTrouble, tell: Tell, fenced_off: Callable[[], None]
    ) -> None:
        super().__init__("checkpoints")
        self._checkpoints = checkpoints
        self._tell = tell
        self._fenced_off = fenced_off
        self._patience = Patience("checkpoints", trouble)
        self._wake = threading.Event()
        checkpoints.due = self._wake.set
        self._hurry_until = 0.0
        self._hurried_at = 0.0
        self._insuring = False
        self._failing_since = 0.0
        self._untidy = False
        self._look_took_s = 0.0
        self._fence_due = time.monotonic() + checkpoints.fence_every_s
        self._over = False
        self.trusted = False  # the writer has exited by itself
        self.last: CheckpointSet | None = None
        self.last_at = 0.0  # when it was in the store, by the monotonic clock
        self.longest_s = 0.0  # of all commits

    def hurry(self, *, for_good: bool = False) -> None:
        """Commits complete files as soon as possible, and reports how long that took; `for_good`: until `calm`."""
        now = time.monotonic()
        self._hurried_at = now
        self._hurry_until = math.inf if for_good else max(self._hurry_until, now + HURRY_S)
        self._wake.set()

    def insure(self) -> None:
        """Commits once what is complete now, although there is time: the last commit may come too late."""
        self._insuring = True
        self._hurry_until = max(self._hurry_until, time.monotonic() + INSURE_S)
        self._wake.set()

    def calm(self) -> None:
        self._hurry_until = self._hurried_at = 0.0
        self._insuring = False

    def finish(self) -> None:
        self.ending.set()
        self._wake.set()
        super().finish()

    def work(self) -> None:
        while not self.ending.is_set() and not self._over:
            # Do not fall into step with a script that saves as regularly as this looks.
            self._wake.wait(random.uniform(0.5, 1.0) * self._pause_s)
            self._wake.clear()
            self._commit(Care.HURRIED if self._hurried else Care.PATIENT)
        while not self._over and not self._commit(Care.TRUSTING if self.trusted else Care.PATIENT):
            time.sleep(0.05)

    @property
    def _hurried(self) -> bool:
        return time.monotonic() < self._hurry_until

    @property
    def _pause_s(self) -> float:
        if self._hurried:
            return max(EVERY_HURRIED_S, self._look_took_s if self._insuring and not self._hurried_at else 0.0)
        pause_s = EVERY_RESTLESS_S if self._checkpoints.restless else EVERY_S
        return max(pause_s, min(SHARE * self._look_took_s, LONGEST_S))

    def _commit(self, care: Care) -> bool:
        """False where it failed and must be retried."""
        if not self._patience.due and care is not Care.HURRIED:
            return False
        start = time.monotonic()
        try:
            if start >= self._fence_due:
                self._fence_due = start + self._checkpoints.fence_every_s
                self._checkpoints.check_fence()
            made = self._checkpoints.commit(care)
            took_s = time.monotonic() - start
            if made:
                self._made(made, took_s)
            if self._untidy and care is not Care.HURRIED:  # then there is no time for it
                self._checkpoints.tidy()
                self._untidy = False
        except AlreadyThere:
            self._over = True
            self._fenced_off()
            return True
        except (StokerError, OSError) as error:
            self._failed(error)
            return False
        if not made:
            self._look_took_s = took_s
        if made or not self._checkpoints.behind:
            self._worked()
        return True

    def _made(self, made: CheckpointSet, took_s: float) -> None:
        self.last, self.last_at, self._untidy = made, time.monotonic(), True
        self.longest_s = max(self.longest_s, took_s)

    def _worked(self) -> None:
        self._patience.worked()
        if self._failing_since:
            seconds, self._failing_since = time.monotonic() - self._failing_since, 0.0
            self._tell("checkpoint-caught-up", f"checkpoints are uploaded again, after {seconds:.0f} s")
        if self._hurried_at:
            seconds, self._hurried_at = time.monotonic() - self._hurried_at, 0.0
            newest = f"checkpoint {self.last.number} is saved" if self.last else "there is no new checkpoint"
            self._tell("notice-committed", f"the last commit took {seconds:.2f} s: {newest}")
        elif not self._insuring:
            return
        self._insuring = False
        if self._hurry_until != math.inf:
            self._hurry_until = 0.0

    def _failed(self, error: StokerError | OSError) -> None:
        known = error if isinstance(error, StokerError) else StoreFailed(f"the checkpoints cannot be read: {error}")
        self._patience.failed(known)
        if not self._failing_since:
            self._failing_since = time.monotonic()
            self._tell(
                "checkpoint-failed",
                f"could not upload a checkpoint: {known.message}; the script continues, and the upload is retried",
            )
