"""What the agent reports: a report that is rewritten at every change and heartbeat, events for the timeline, and how
the node spends its time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from stoker.agent.shipping.logs import Masking
from stoker.agent.shipping.worker import Patience, StoreTrouble
from stoker.errors import AlreadyThere, StokerError
from stoker.model.orders import Orders
from stoker.model.run.report import MOST_EVICTIONS, Climb, Effort, Kept, Phase, Report
from stoker.model.run.run import Event
from stoker.model.snapshot import CheckpointSet
from stoker.model.wire import dump
from stoker.model.workspace import layout
from stoker.stores import Store, pacing


class EventQueue:
    """Timeline events that are not written yet. Any thread may add one."""

    def __init__(self, masking: Masking) -> None:
        self._masking = masking
        self._lines: list[bytes] = []
        self._lock = threading.Lock()
        self.news = threading.Event()  # there is something to write

    def tell(self, kind: str, text: str) -> None:
        """Adds an event to the timeline."""
        line = dump(Event(_now(), kind, self._masking.text(text))) + b"\n"
        with self._lock:
            self._lines.append(line)
        self.news.set()

    def waiting(self) -> list[bytes]:
        with self._lock:
            return list(self._lines)

    def written(self, count: int) -> None:
        """The oldest `count` events are in the store."""
        with self._lock:
            del self._lines[:count]


class Reporter:
    """A thread of its own writes, so that heartbeats continue during a large upload. `live` returns the fields of the
    report that change all the time."""

    def __init__(
        self,
        store: Store,
        orders: Orders,
        events: EventQueue,
        trouble: StoreTrouble,
        effort: EffortMeter,
        live: Callable[[], dict[str, Any]] = dict,
    ) -> None:
        self._store = store
        self._effort = effort
        self._live = live
        self._beat_s = pacing(store).beat_s
        self._key = layout.report(orders.run_id, orders.attempt, orders.node)
        self._events_key = layout.events(orders.run_id, orders.attempt, orders.node)
        self._report = Report(orders.attempt, orders.node, Phase.UNPACKING, _now(), beat=1)
        self._events = events
        self._events_size = 0
        self._lock = threading.Lock()
        self._news = events.news
        self._ending = False
        self._patience = Patience("report", trouble)
        self._thread = threading.Thread(target=self._run, name="report", daemon=True)

    def claim(self) -> bool:
        """Writes the first report. False where another agent did: an attempt is started once, however often it is
        requested."""
        words = dump(self._report)
        try:
            self._store.put(self._key, words, only_new=True)
        except AlreadyThere:
            if self._store.get(self._key) != words:  # otherwise it is this report, whose confirmation was lost
                return False
        self._thread.start()
        return True

    def continue_from(self, before: Report, events_size: int) -> None:
        """Instead of `claim`, on a restored VM: continues the reports of an earlier one."""
        again: dict[str, Any] = {"outcome": None, "exit_code": None, "ended_at": None, "notice": None, "stays": False}
        again["standstill"] = None
        words: dict[str, Any] = {"message": "", "hint": "", "ranks": ()}
        self._report = replace(
            before, phase=Phase.UNPACKING, at=_now(), beat=before.beat + 1, effort=self._effort.now(), **again, **words
        )
        self._events_size = events_size
        self._store.put(self._key, dump(self._report))
        self._thread.start()

    @property
    def started_at(self) -> datetime | None:
        """When the script first started, possibly on an earlier VM of this attempt."""
        return self._report.started_at

    def say(self, **changes: Any) -> None:
        """Changes fields of the report and writes it at once."""
        if "phase" in changes:
            self._effort.enter(changes["phase"])
        with self._lock:
            self._report = replace(self._report, **changes)
        self._news.set()

    def finish(self, last_words: Callable[[], dict[str, Any]]) -> None:
        """Returns once the final report is in the store, however long that takes.

        `last_words` returns its fields; it is called again at each try, since they include the errors of the store.
        """
        self._ending = True
        self._news.set()
        self._thread.join()
        while True:
            self.say(phase=Phase.DONE, **last_words())
            if self._write():
                return
            time.sleep(0.1)

    def _run(self) -> None:
        while not self._ending:
            self._news.wait(self._beat_s)
            self._news.clear()
            self._write()

    def _write(self) -> bool:
        if not self._patience.due:
            return False
        try:
            self._write_events()
            with self._lock:
                now = {**self._live(), "at": _now(), "beat": self._report.beat + 1, "effort": self._effort.now()}
                self._report = replace(self._report, **now)
                report = self._report
            self._store.put(self._key, dump(report))
        except StokerError as error:
            self._patience.failed(error)
            return False
        self._patience.worked()
        return True

    def _write_events(self) -> None:
        """All pending ones at once: each write may be billed."""
        waiting = self._events.waiting()
        if waiting:
            lines = b"".join(waiting)
            self._store.append(self._events_key, self._events_size, lines)
            self._events_size += len(lines)
            self._events.written(len(waiting))


def _now() -> datetime:
    return datetime.now(UTC)


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
        self._undone_s = 0.0
        self._evicted_at: tuple[datetime, ...] = ()
        self.began_from: Kept | None = None
        self._running_since = 0.0  # 0: the script has not started

    def continue_from(self, before: Effort | None) -> None:
        """Adds the effort of an earlier VM of this attempt, which was evicted, except for what it had not saved."""
        self._before = before or Effort(datetime.now(UTC))
        self._evicted_at = (*self._before.evicted_at, self._before.at)[-MOST_EVICTIONS:]
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
            evicted_at=self._evicted_at,
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
