"""How this node spends its time: each phase by the monotonic clock, and how much work an eviction would lose now."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from stoker.model.checkpoint import CheckpointSet
from stoker.model.run.report import Climb, Effort, Kept, Phase


@dataclass(frozen=True, slots=True)
class Witnesses:
    """Where the meter gets its figures from."""

    newest: Callable[[], CheckpointSet | None] = lambda: None  # the last committed set
    step: Callable[[], float | None] = lambda: None
    climbs: Callable[[float], tuple[Climb, ...]] = lambda _since: ()
    waited_s: Callable[[], float] = lambda: 0.0  # by the script for its data
    idle_since: Callable[[], float | None] = lambda: None  # by the clock: it has saved and waits for the shutdown


class EffortMeter:
    """`toll` is the path prefix of the files in which ranks record how long they waited for their saves. One thread
    enters phases, another calls `now`."""

    def __init__(self, toll: Path, asked: Witnesses | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._toll = toll
        self._asked = asked or Witnesses()
        self._clock = clock
        # The current phase, its start, and the seconds of each earlier one: one value, for two threads.
        self._state: tuple[Phase, float, dict[str, float]] = (Phase.UNPACKING, clock(), {})
        self._kept: Kept | None = None
        self._kept_at = 0.0  # by the monotonic clock
        self._kept_set: CheckpointSet | None = None
        self._stopped_at = 0.0  # when the script ended; 0: it is running
        self._blocked_s = 0.0  # at that time
        self.restored_s = 0.0
        self._before: Effort | None = None
        self._undone_s, self._evictions = 0.0, 0
        self.began_from: Kept | None = None
        self._running_since = 0.0  # 0: the script has not started

    def continue_from(self, before: Effort | None) -> None:
        """Adds the effort of an earlier VM of this attempt, which was evicted, except for what it had not saved."""
        self._before = before or Effort(datetime.now(UTC))
        self._evictions = self._before.evictions + 1
        self._undone_s = self._before.undone_s + self._before.unsaved_s
        phase, since, spent = self._state
        self._state = (phase, since, {**self._before.phases, **spent})
        self._kept = self._before.kept

    def enter(self, phase: Phase) -> None:
        now = self._clock()
        if phase is Phase.RUNNING:
            self._running_since = now
        if self._state[0] is Phase.RUNNING and phase is not Phase.RUNNING:
            self._stopped_at = now
            self._blocked_s = self._toll_s()  # the files are deleted before the final report
        self._state = (phase, now, self._spent(now))

    def restored(self, found: CheckpointSet | None, seconds: float) -> None:
        """The script resumes from this set; None: from the start."""
        self.restored_s = self._earlier("restored_s") + seconds
        self.began_from = self._before.began_from if self._before else kept(found) if found else None

    def now(self) -> Effort:
        now = self._clock()
        spent = self._spent(now)
        spent.pop(Phase.DONE, None)
        running_s = spent.get(Phase.RUNNING, 0.0)
        self._look_at_checkpoints(now)
        end = self._stopped_at or now
        idle_s = self._idle_s(end)
        return Effort(
            at=datetime.now(UTC),
            phases={phase: round(seconds, 6) for phase, seconds in spent.items()},
            restored_s=round(self.restored_s, 6),
            blocked_s=min((self._blocked_s or self._toll_s()) + idle_s + self._earlier("blocked_s"), running_s),
            waited_s=min(self._asked.waited_s() + self._earlier("waited_s"), running_s),
            undone_s=round(min(self._undone_s, running_s), 6),
            evictions=self._evictions,
            at_rest=self._asked.idle_since() is not None,
            unsaved_s=self._unsaved_s(end - idle_s, running_s),
            step=self._asked.step(),
            began_from=self.began_from,
            kept=self._kept,
            climbs=self._asked.climbs(self._running_since) if self._running_since else (),
        )

    def _earlier(self, name: str) -> float:
        return float(getattr(self._before, name)) if self._before else 0.0

    def _spent(self, now: float) -> dict[str, float]:
        phase, since, before = self._state
        return {**before, phase: before.get(phase, 0.0) + now - since}

    def _look_at_checkpoints(self, now: float) -> None:
        """File times are of another clock, so the age of a set is computed once."""
        newest = self._asked.newest()
        if newest is not None and newest is not self._kept_set:
            self._kept_set, self._kept = newest, kept(newest)
            self._kept_at = now - max((datetime.now(UTC) - self._kept.at).total_seconds(), 0.0)

    def _unsaved_s(self, end: float, running_s: float) -> float:
        if self._kept_set is None:
            return max(running_s - self._earlier("running_s"), 0.0)
        return min(max(end - self._kept_at, 0.0), running_s)

    def _idle_s(self, end: float) -> float:
        since = self._asked.idle_since()
        return 0.0 if since is None else max(end - since, 0.0)

    def _toll_s(self) -> float:
        """Ranks save together: the one that waited longest has delayed them all."""
        longest = 0.0
        for file in self._toll.parent.glob(f"{self._toll.name}.*"):
            with suppress(OSError, ValueError):
                longest = max(longest, float(file.read_text()))
        return longest


def kept(found: CheckpointSet) -> Kept:
    """The time of the newest content counts; the commit came a little later, when no file changed any more."""
    newest = max(found.changed_ns.values(), default=0)
    # A script may give its files any time, even one outside the calendar.
    at = datetime.fromtimestamp(newest / 1e9, UTC) if 0 < newest < found.at.timestamp() * 1e9 else found.at
    return Kept(found.attempt, found.number, at, found.step)
