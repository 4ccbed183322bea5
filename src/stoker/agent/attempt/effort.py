"""What the time of this node goes into: each phase by the steady clock, and what of the work would be lost now."""

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
    """Whom the meter asks about the work."""

    newest: Callable[[], CheckpointSet | None] = lambda: None  # the set that was committed last
    step: Callable[[], float | None] = lambda: None
    climbs: Callable[[float], tuple[Climb, ...]] = lambda _since: ()
    waited_s: Callable[[], float] = lambda: 0.0  # by the script for its data
    idle_since: Callable[[], float | None] = lambda: None  # by the clock: it has saved, and waits for its end


class EffortMeter:
    """`toll` is what the files begin with in which ranks say how long they have waited for their saves. Phases are
    entered by one thread, and `now` is asked by another."""

    def __init__(self, toll: Path, asked: Witnesses | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._toll = toll
        self._asked = asked or Witnesses()
        self._clock = clock
        # The phase under way, since when, and the seconds of each before it: one value, for two threads.
        self._state: tuple[Phase, float, dict[str, float]] = (Phase.UNPACKING, clock(), {})
        self._kept: Kept | None = None
        self._kept_at = 0.0  # by the steady clock
        self._kept_set: CheckpointSet | None = None
        self._stopped_at = 0.0  # when the script ended; 0: it has not
        self._blocked_s = 0.0  # as it was then
        self.restored_s = 0.0
        self._before: Effort | None = None
        self._undone_s, self._evictions = 0.0, 0
        self.began_from: Kept | None = None
        self._running_since = 0.0  # 0: the script has not begun

    def continue_from(self, before: Effort | None) -> None:
        """Of an earlier machine of this attempt, which was evicted: what it did counts, but for what it had not
        saved."""
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
            self._blocked_s = self._toll_s()  # the files will be gone before the last word
        self._state = (phase, now, self._spent(now))

    def restored(self, found: CheckpointSet | None, seconds: float) -> None:
        """The script will go on from this set; None: from nothing."""
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
        """A set is made of files whose times are the other clock's: how old it is now, is reckoned once."""
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
        """Ranks save together: the one that has waited longest has held them all."""
        longest = 0.0
        for file in self._toll.parent.glob(f"{self._toll.name}.*"):
            with suppress(OSError, ValueError):
                longest = max(longest, float(file.read_text()))
        return longest


def kept(found: CheckpointSet) -> Kept:
    """What matters is the newest content: it was committed a little later, when everything had come to rest."""
    newest = max(found.changed_ns.values(), default=0)
    # A script may give its files any time, also one that no calendar has.
    at = datetime.fromtimestamp(newest / 1e9, UTC) if 0 < newest < found.at.timestamp() * 1e9 else found.at
    return Kept(found.attempt, found.number, at, found.step)
