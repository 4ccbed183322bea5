"""What the agent reports: a report that is rewritten at every change and heartbeat, and events for the timeline."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from stoker.agent.attempt.effort import EffortMeter
from stoker.agent.shipping.logs import Masking
from stoker.agent.shipping.worker import Patience, StoreTrouble
from stoker.errors import AlreadyThere, StokerError
from stoker.model.node.orders import Orders
from stoker.model.run.report import Phase, Report
from stoker.model.run.run import Event
from stoker.model.wire import dump
from stoker.model.workspace import layout
from stoker.stores import Store
from stoker.stores.pacing import pacing


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
