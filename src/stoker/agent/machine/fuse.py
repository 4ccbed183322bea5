"""The node's own budget limit: it saves, stops and has itself released before its run exceeds its budget.

Everything is computed with the machine's monotonic clock from the server's last figures, so it works while the server
and the laptop are off. The agent stops cleanly; the tenant next to it removes the machine in time whatever the agent
does.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from stoker.agent.checkpoints.keeper import Keeper
from stoker.agent.shipping.metrics.points import MetricPoint
from stoker.files import write_whole
from stoker.model.orders import Notice
from stoker.model.run.money import FINISH_S, SAVE_S, Fuse

LOOK_EVERY_S = 0.1
CAUTION = 1.25  # how much longer than ever before it may take
MOST_BOOT_S = 900.0  # between requesting a VM and its agent's first look: a clock that shows more is wrong
LONGEST_STEP_S = 120.0  # the longest to wait for a script that saves at its next step

Tell = Callable[[str, str], None]


class FuseClock:
    """The time until the machine must request its release. One thread updates it, others read it."""

    def __init__(self, steady: Callable[[], float] = time.monotonic) -> None:
        self._steady = steady
        self._state: tuple[Fuse | None, float] = (None, math.inf)

    @property
    def fuse(self) -> Fuse | None:
        return self._state[0]

    @property
    def release_at(self) -> float:
        """By the monotonic clock."""
        return self._state[1]

    @property
    def left_s(self) -> float:
        return self.release_at - self._steady()

    def hear(self, fuse: Fuse | None, age_s: float) -> bool:
        """`age_s` is the longest that can have passed since the server computed it. A repeated value changes
        nothing."""
        if fuse is None or fuse == self.fuse:
            return False
        self._state = (fuse, self._steady() + fuse.seconds - max(age_s, 0.0))
        return True


def age_by_date(as_of: datetime, now: datetime) -> float:
    """The age of a value from before this machine existed. Only here two clocks are compared."""
    return min(max((now - as_of).total_seconds(), 0.0), MOST_BOOT_S)


class NodeFuse:
    """Watches the clock in a thread of its own. `light` gets a notice when it is time to save, and None when it no
    longer is; `blow` gets the reason when it is time to end."""

    def __init__(
        self,
        file: Path,
        keeper: Keeper,
        light: Callable[[Notice | None], None],
        blow: Callable[[str], None],
        tell: Tell,
    ) -> None:
        self.clock = FuseClock()
        self.lit_at = 0.0  # when the script was told to save, by the monotonic clock; 0: it was not
        self._file = file
        self._keeper = keeper
        self._light = light
        self._blow = blow
        self._tell = tell
        self._blown = False
        self._step: tuple[float, float] | None = None  # the newest, and when it was seen
        self._step_s = 0.0  # duration of the newest one
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fuse", daemon=True)

    def hear(self, fuse: Fuse | None, age_s: float) -> None:
        """The server's figures. The first starts the watch: most nodes cost nothing, and have none."""
        if not self.clock.hear(fuse, age_s):
            return
        leave_word(self._file, self.clock.release_at)
        if not self._thread.ident:
            self._thread.start()

    def see(self, point: MetricPoint) -> None:
        """Measures how long a step takes: a script that saves at its next step must reach it."""
        now = time.monotonic()
        if point.step is None or (self._step and point.step <= self._step[0]):
            return
        if self._step:
            self._step_s = min((now - self._step[1]) / (point.step - self._step[0]), LONGEST_STEP_S)
        self._step = (point.step, now)

    @property
    def measured_s(self) -> float:
        """How long saving and uploading has taken on this node. For reports."""
        commits_s = 2 * self._keeper.longest_s
        return max(commits_s, time.monotonic() - self.lit_at) if self.lit_at and self._ending.is_set() else commits_s

    @property
    def finish_s(self) -> float:
        """Time to stop the script, for a last commit and the final report."""
        return max(FINISH_S, CAUTION * self._keeper.longest_s + FINISH_S / 2)

    @property
    def save_s(self) -> float:
        """Time for the script to save, before it is stopped."""
        before = self.clock.fuse.save_s if self.clock.fuse else 0.0
        return max(SAVE_S, CAUTION * (self._step_s + self._keeper.longest_s), before - self.finish_s)

    def finish(self, *, over: bool) -> None:
        """The attempt is about to end. `over`: because of the budget, so that the machine may be released at once."""
        self._ending.set()
        if self.clock.fuse:
            leave_word(self._file, self.clock.release_at, over=over)

    def _run(self) -> None:
        while not self._ending.wait(LOOK_EVERY_S):
            self._look()

    def _look(self) -> None:
        left_s, needed_s = self.clock.left_s, self.finish_s + self.save_s
        if self.lit_at and not self._blown and left_s > 2 * needed_s:
            self.lit_at = 0.0
            self._light(None)
            self._tell("fuse-withdrawn", "the budget was raised: the script continues")
        if not self.lit_at and left_s <= needed_s:
            self._begin(left_s - self.finish_s)
        if not self._blown and left_s <= self.finish_s:
            self._blown = True
            self._blow(self.why)

    def _begin(self, seconds: float) -> None:
        self.lit_at, now = time.monotonic(), datetime.now(UTC)
        seconds = max(seconds, 0.0)
        self._tell("fuse", f"{self.why}: the script saves, and stops in {seconds:.1f} s")
        self._light(Notice(now, now + timedelta(seconds=seconds)))

    @property
    def why(self) -> str:
        whose = self.clock.fuse.why if self.clock.fuse else ""
        return f"{whose or 'the budget'} is nearly spent"


def leave_word(file: Path, release_at: float, *, over: bool = False) -> None:
    """For the tenant, which reads it as long as the machine runs."""
    with suppress(OSError):  # then the tenant uses its earlier value
        write_whole(file, json.dumps({"release_at": release_at, "over": over}))


class TenantFuse:
    """What the tenant knows about the budget: the value at the machine's start, then the agent's."""

    def __init__(self, file: Path, steady: Callable[[], float] = time.monotonic) -> None:
        self._file = file
        self._steady = steady
        self._release_at = math.inf
        self._over = False

    def begin(self, release_at: float) -> None:
        """An agent starts, and will write its own value; until then this one counts."""
        with suppress(OSError):
            self._file.unlink(missing_ok=True)
        self._release_at, self._over = release_at, False

    def look(self) -> float:
        """Seconds that the machine may still run; at 0 or less it must be removed now, whatever the agent does."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            said = json.loads(self._file.read_bytes())
            self._release_at, self._over = float(said["release_at"]), bool(said["over"])
        return self._release_at - self._steady()

    @property
    def over(self) -> bool:
        """The agent has stopped because of the budget: once it has exited, there is nothing to wait for."""
        return self._over
