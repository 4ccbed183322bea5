"""What agents last said: read at every look from a store nearby, and at its own pace from one that is far."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass

from stoker.engine.sweeping import claimed
from stoker.errors import Missing, StokerError
from stoker.model import layout, wire
from stoker.model.report import Phase, Report
from stoker.model.run import Attempt, Run
from stoker.server.clock import Clock
from stoker.server.outside import call, call_far
from stoker.server.stores import Stores
from stoker.stores import Store
from stoker.stores.pacing import NEAR, Pacing, pacing

_SLOWER = 1.3  # each look at a far store that finds nothing new is followed by a longer pause


@dataclass
class Seen:
    """All times are those of the server's steady clock."""

    raw: bytes = b""
    report: Report | None = None
    since: float = 0.0  # when it last changed, as far as the store could be asked; 0: nothing was ever said
    asked_at: float = 0.0  # when the last look that got an answer began
    due: float = 0.0
    pause_s: float = 0.0
    trouble: str = ""  # why the store could not be asked


class Reports:
    def __init__(self, stores: Stores, clock: Clock, wake: Callable[[], None]) -> None:
        self._stores = stores
        self._clock = clock
        self._wake = wake
        self._seen: dict[str, Seen] = {}  # by node key
        self._under_way: dict[str, asyncio.Task[None]] = {}
        self._gone_at: dict[str, float] = {}  # by node key: when its node was first seen gone

    def of(self, key: str) -> Seen:
        return self._seen.get(key) or Seen()

    async def look(self, runs: Collection[Run], gone: Collection[str]) -> None:
        """`gone` are the keys of nodes that are no more: what they said last is asked for at once."""
        needed = claimed(runs)
        now = self._clock.steady()
        self._seen = {key: seen for key, seen in self._seen.items() if key in needed}
        self._gone_at = {key: self._gone_at.get(key, now) for key in gone}
        near: list[tuple[Store, Run, Attempt]] = []
        for run in runs:
            attempt = run.attempt
            if not attempt or attempt.key not in needed:
                continue
            store = self._open(run, attempt.key)
            if store and pacing(store) is NEAR:
                near.append((store, run, attempt))
            elif store and self._is_due(attempt.key, now) and attempt.key not in self._under_way:
                task = asyncio.create_task(self._ask(store, run, attempt), name=f"report {attempt.key}")
                self._under_way[attempt.key] = task
        if near:
            await call(self._read_all, near)

    def heard_last(self, key: str) -> bool:
        """Everything that a node which is gone has said is known. Until then nobody may conclude that it said less."""
        return self.of(key).asked_at >= self._gone_at.get(key, 0.0)

    def _open(self, run: Run, key: str) -> Store | None:
        try:
            return self._stores.of(run)
        except StokerError as error:
            self._seen.setdefault(key, Seen()).trouble = error.message
            return None

    def _is_due(self, key: str, now: float) -> bool:
        seen = self._seen.setdefault(key, Seen())
        return now >= seen.due or (key in self._gone_at and not seen.trouble and not self.heard_last(key))

    async def _ask(self, store: Store, run: Run, attempt: Attempt) -> None:
        """One look at a far store. Whatever it finds out, the next round knows."""
        seen = self._seen.setdefault(attempt.key, Seen())
        before, pace = (seen.report, seen.trouble), pacing(store)
        eager = attempt.notice is not None or attempt.key in self._gone_at
        try:
            await call_far(self._read, store, run, attempt)
        except StokerError as error:
            now = self._clock.steady()
            seen.trouble = error.message
            seen.since = now if seen.since else 0.0  # silence that is the store's, not the agent's
            seen.due = now + pace.lazy_s
        else:
            seen.trouble = ""
            self._pause(seen, before[0], pace, eager=eager, spot=bool(attempt.offer and attempt.offer.spot))
        finally:
            self._under_way.pop(attempt.key, None)
        if before != (seen.report, seen.trouble) or attempt.key in self._gone_at:
            self._wake()

    def _pause(self, seen: Seen, before: Report | None, pace: Pacing, *, eager: bool, spot: bool) -> None:
        """Short while something is about to happen; a heartbeat is no news. A machine that may be taken away has thirty
        seconds to say so, and each of them counts for the next one."""
        news = (before.phase if before else None) != (seen.report.phase if seen.report else None)
        slowest = pace.lazy_s if not eager else 2 * pace.eager_s
        if spot or (seen.report and seen.report.phase is not Phase.RUNNING):
            slowest = min(slowest, 4 * pace.eager_s)
        seen.pause_s = pace.eager_s if news else min(max(seen.pause_s, pace.eager_s) * _SLOWER, slowest)
        seen.due = self._clock.steady() + seen.pause_s

    def _read_all(self, some: list[tuple[Store, Run, Attempt]]) -> None:
        for store, run, attempt in some:
            self._read(store, run, attempt)

    def _read(self, store: Store, run: Run, attempt: Attempt) -> None:
        """In a thread. A report that has not changed is not parsed again."""
        seen, began = self._seen.setdefault(attempt.key, Seen()), self._clock.steady()
        try:
            raw = store.get(layout.report(run.id, attempt.number))
        except Missing:
            raw = b""
        seen.asked_at = began
        if raw and raw != seen.raw:
            seen.raw, seen.report, seen.since = raw, wire.load(Report, raw), self._clock.steady()
