"""The last report of each agent: read in every round from a local store, and at a pace of its own from a remote one."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from stoker.engine.looking import Heard
from stoker.engine.nodes.nodes import claimed
from stoker.errors import Malformed, Missing, StokerError, StoreFailed, StoreUnavailable
from stoker.model import untrusted
from stoker.model.run.report import MetricSummary, Phase, Report
from stoker.model.run.run import Attempt, Event, Member, Run
from stoker.model.workspace import layout
from stoker.server.records.database import left_out_words
from stoker.server.results.figures import MOST_UNREADABLE, lines, summary_before
from stoker.server.rounds.outside import Clock, call, call_far
from stoker.server.stores.stores import StoreDirectory
from stoker.stores import NEAR, Pacing, Store, pacing

log = logging.getLogger(__name__)

_SLOWER = 1.3  # each read of a remote store that finds nothing new is followed by a longer pause
_SLOW_S = 1.0  # a read that took longer waited for the store: that time does not count as silence of the agent
_HUNG_S = 5.0  # a read that took longer means that the store hung
_RECOVERY_S = 60.0  # for an agent whose own request hung with the store, until that times out and it can write again


@dataclass
class SeenReport:
    """All times are those of the server's steady clock."""

    raw: bytes | None = None  # None: there was none
    report: Report | None = None
    since: float = 0.0  # silence counts from here: the last change, or a while after the store failed; 0: never
    asked_at: float = 0.0  # when the last answered read began
    before: Mapping[str, MetricSummary] | None = None  # of earlier attempts, by their points in the store
    said_at: datetime | None = None  # when the store was given the final report, by its own clock
    deaf_until: float = 0.0  # the store failed: agents have until then to write again
    due: float = 0.0
    pause_s: float = 0.0
    trouble: str = ""  # why the store could not be read
    fit: bool = True  # the last report is readable
    refused: str = ""  # why a report was rejected, until one is accepted
    refused_since: float = 0.0  # since when

    def is_deaf(self, now: float) -> bool:
        """Silence means nothing yet: the store fails, has just failed, or has not been read."""
        return bool(self.trouble) or not self.asked_at or now < self.deaf_until

    @property
    def silent_s(self) -> float:
        """Seconds without a heartbeat of the agent, counted only over reads that the store answered."""
        return max(self.asked_at - self.since, 0.0) if self.since else 0.0

    def heard_at(self, began: float) -> None:
        """Keeps an answer of the store. A read that hung may be answered after a later one."""
        self.asked_at = max(began, self.asked_at)

    def waited(self, began: float, now: float) -> None:
        """Records how long a read took. If the store could not answer, the agent could not write either."""
        if now - began > _HUNG_S:
            self.excuse(now)
        elif self.since and now - began > _SLOW_S:
            self.since += now - began

    def excuse(self, now: float) -> None:
        """The store failed or hung until now."""
        self.deaf_until = now + _RECOVERY_S
        self.since = self.deaf_until if self.since else 0.0

    @property
    def unusable(self) -> str:
        """Why the last report is not used; empty if it is, or may be."""
        return self.refused if not self.fit or self.report is None else ""


class Reports:
    def __init__(self, stores: StoreDirectory, clock: Clock, wake: Callable[[], None]) -> None:
        self._stores = stores
        self._clock = clock
        self._wake = wake
        self._seen: dict[str, SeenReport] = {}  # by node key
        self._under_way: dict[str, asyncio.Task[None]] = {}
        self._gone_at: dict[str, float] = {}  # by node key: when its node was first seen gone

    def of(self, key: str) -> SeenReport:
        return self._seen.get(key) or SeenReport()

    def heard(self, key: str) -> Heard:
        """The same, as facts to decide upon."""
        seen, steady = self.of(key), self._clock.steady()
        return Heard(
            report=seen.report,
            refused=seen.unusable,
            refused_s=steady - seen.refused_since if seen.refused_since else 0.0,
            silent_s=seen.silent_s,
            deaf=seen.is_deaf(steady),
            said_at=seen.said_at,
            in_full=self.heard_last(key),
            trouble=seen.trouble,
        )

    async def look(self, runs: Collection[Run], gone: Collection[str]) -> None:
        """`gone` are the keys of nodes that no longer exist: their last reports are read immediately."""
        needed = claimed(runs)
        now = self._clock.steady()
        self._seen = {key: seen for key, seen in self._seen.items() if key in needed}
        self._gone_at = {key: self._gone_at.get(key, now) for key in gone}
        near: list[tuple[Store, Run, Member]] = []
        members = ((run, member) for run in runs if run.attempt for member in run.attempt.members)
        for run, attempt in members:
            if attempt.key not in needed:
                continue
            store = await self._open(run, attempt.key)
            if store and pacing(store) is NEAR:
                near.append((store, run, attempt))
            elif store and self._is_due(attempt.key, now) and attempt.key not in self._under_way:
                task = asyncio.create_task(self._ask(store, run, attempt), name=f"report {attempt.key}")
                self._under_way[attempt.key] = task
        if near:
            await call(self._read_all, near)

    def with_points(self, run: Run) -> Run:
        """With the metrics of its earlier attempts by all points that they stored, once its newest has ended."""
        before = self.of(run.attempt.key).before if run.attempt and not run.attempt.state.over else None
        return run if before is None else replace(run, metrics=before)

    def drop(self, key: str, why: str) -> None:
        """The last report of the node is readable, but cannot be used."""
        self._refuse(key, why)
        self.of(key).report = None

    def _refuse(self, key: str, why: str) -> None:
        """The node counts as rejected until a report of it is accepted. Its earlier reports stay valid."""
        seen = self._seen.setdefault(key, SeenReport())
        seen.refused = why
        seen.refused_since = seen.refused_since or self._clock.steady()

    def accept(self, key: str) -> None:
        """The last report of the node was used, if it was readable."""
        if (seen := self._seen.get(key)) and seen.report and seen.fit:
            seen.refused, seen.refused_since = "", 0.0

    def heard_last(self, key: str) -> bool:
        """All reports of a node that is gone have been read. Until then, a missing report proves nothing."""
        return self.of(key).asked_at >= self._gone_at.get(key, 0.0)

    async def _open(self, run: Run, key: str) -> Store | None:
        try:
            return await self._stores.reach(run.store)
        except StokerError as error:
            self._seen.setdefault(key, SeenReport()).trouble = error.message
            return None

    def _is_due(self, key: str, now: float) -> bool:
        seen = self._seen.setdefault(key, SeenReport())
        return now >= seen.due or (key in self._gone_at and not seen.trouble and not self.heard_last(key))

    async def _ask(self, store: Store, run: Run, attempt: Member) -> None:
        """One read of a remote store. The next round uses what it finds."""
        seen = self._seen.setdefault(attempt.key, SeenReport())
        before, pace, told = seen.report, pacing(store), self._told(attempt.key)
        eager = attempt.notice is not None or attempt.key in self._gone_at
        try:
            await call_far(self._read, store, run, attempt)
        except Exception as error:
            self._note_trouble(attempt.key, error)
            seen.due = self._clock.steady() + pace.lazy_s
        else:
            seen.trouble = ""
            self._pause(seen, before, pace, eager=eager, spot=bool(attempt.offer and attempt.offer.spot))
        finally:
            self._under_way.pop(attempt.key, None)
        if told != self._told(attempt.key):
            self._wake()

    def _told(self, key: str) -> tuple[object, ...]:
        """Whether the change is worth a round. Heartbeats and metrics wait for the next one."""
        seen = self.of(key)
        report = seen.report
        news = report and (report.phase, report.outcome, report.notice, report.standstill, report.message)
        return news, seen.trouble, seen.unusable, self.heard_last(key)

    def _pause(self, seen: SeenReport, before: Report | None, pace: Pacing, *, eager: bool, spot: bool) -> None:
        """Short while a change is expected; a heartbeat is not a change. A spot machine has 30 seconds to report its
        eviction, and each second counts for its replacement."""
        news = (before.phase if before else None) != (seen.report.phase if seen.report else None)
        slowest = pace.lazy_s if not eager else 2 * pace.eager_s
        if spot or (seen.report and seen.report.phase is not Phase.RUNNING):
            slowest = min(slowest, 4 * pace.eager_s)
        seen.pause_s = pace.eager_s if news else min(max(seen.pause_s, pace.eager_s) * _SLOWER, slowest)
        seen.due = self._clock.steady() + seen.pause_s

    def _read_all(self, some: list[tuple[Store, Run, Member]]) -> None:
        """A report that cannot be read does not delay the others."""
        for store, run, attempt in some:
            try:
                self._read(store, run, attempt)
                self.of(attempt.key).trouble = ""
            except Exception as error:
                self._note_trouble(attempt.key, error)

    def _note_trouble(self, key: str, error: Exception) -> None:
        seen = self._seen.setdefault(key, SeenReport())
        text = error.message if isinstance(error, StokerError) else f"{type(error).__name__}: {error}"
        if text != seen.trouble:
            log.warning("the report of %s: %s", key, text, exc_info=None if isinstance(error, StokerError) else error)
        seen.trouble = text
        seen.excuse(self._clock.steady())  # the store was silent, not the agent

    def _read(self, store: Store, run: Run, attempt: Member) -> None:
        """In a thread. A report that has not changed is not parsed again."""
        seen, began = self._seen.setdefault(attempt.key, SeenReport()), self._clock.steady()
        raw = None
        try:
            raw = _fetched(store, run, attempt)
            seen.waited(began, self._clock.steady())
            if raw == seen.raw:
                seen.heard_at(began)
                return
            seen.raw = raw
            report = untrusted.load(Report, raw, self._clock.now())
            if (report.attempt, report.node) != (attempt.number, attempt.node):
                raise Malformed(f"it is that of attempt {report.attempt} and node {report.node}")
        except Missing:
            if seen.raw is not None:
                _check_there(store, run, attempt)
            seen.asked_at = began
        except Malformed as error:
            seen.asked_at, seen.fit, seen.raw = began, False, raw
            if seen.refused != error.message:
                log.warning("the report of %s is not used: %s", attempt.key, error.message)
            self._refuse(attempt.key, error.message)
        else:
            seen.before = self._measured_before(store, run, report) if report.outcome else None
            seen.report, seen.fit, seen.since = report, True, self._clock.steady()
            seen.said_at = _written_at(store, run, attempt) if report.outcome else None
            seen.heard_at(began)

    def _measured_before(self, store: Store, run: Run, report: Report) -> Mapping[str, MetricSummary] | None:
        """An attempt that was evicted has stored more points than its last heartbeat counted."""
        try:
            return summary_before(store, run, report.attempt, self._clock.now())
        except StokerError as error:
            log.warning("the metrics of %s are those of heartbeats: %s", run.name, error.message)
            return None


def _written_at(store: Store, run: Run, attempt: Member) -> datetime | None:
    """By the store's clock, which no node can set. None if the store has no time for it."""
    key = layout.report(run.id, attempt.number, attempt.node)
    with suppress(StokerError, OverflowError, ValueError):
        times = [one.changed_at for one in store.list(key.rpartition("/")[0]) if one.key == key]
        return datetime.fromtimestamp(times[0], UTC) if times and times[0] > 0 else None
    return None


def _check_there(store: Store, run: Run, attempt: Member) -> None:
    """A store that has lost even the orders, such as a folder on a disk that is not mounted, is unavailable: the
    silence is not the node's fault. Raises StoreUnavailable."""
    try:
        store.get(layout.orders(run.id, attempt.number, attempt.node), 0, 1)
    except Missing:
        raise StoreUnavailable("its contents are missing") from None


def _fetched(store: Store, run: Run, attempt: Member) -> bytes:
    """A node can replace its report by something unreadable, such as a link to itself. That is the node's fault, not
    the store's, if the store can read what only the server writes."""
    try:
        return untrusted.fetch_bytes(store, layout.report(run.id, attempt.number, attempt.node), untrusted.REPORT_BYTES)
    except (Missing, Malformed):
        raise
    except StoreFailed as error:
        with suppress(Missing):
            store.get(layout.record(run.id), 0, 1)
        raise Malformed(f"it cannot be fetched: {error.message}") from error


# What an agent adds to the timeline of its run.

MOST_EVENTS = 1000  # of one attempt
MOST_OF_A_KIND = 200  # likewise, so that one kind crowds out no other
_MOST_BYTES = 16 << 20
_LONGEST_KIND = 40
METRICS = "metrics"  # the kind of events that say where metrics were found
_LONGEST_TEXT = 4000


def agent_events(store: Store, run_id: str, attempt: Attempt, now: datetime) -> list[Event]:
    """Of one attempt, in the order of their time."""
    if not attempt.peers:
        return _events(store, run_id, attempt, now)
    found = [
        replace(event, text=f"node {member.node}: {event.text}")
        for member in attempt.members
        for event in _events(store, run_id, member, now)
    ]
    return sorted(found, key=lambda event: event.at)


def _events(store: Store, run_id: str, attempt: Member, now: datetime) -> list[Event]:
    """Of one node, in order. Events beyond the limit, and lines that no agent writes, are counted in one event each.
    A node's clock cannot date an event before its attempt or in the future."""
    number, reading = attempt.number, _Reading(attempt.asked_at, now)
    found = list(reading.events(lines(store, layout.events(run_id, number, attempt.node), _MOST_BYTES)))
    at = found[-1].at if found else now
    if reading.left_out:
        least = "at least " if reading.left_out >= MOST_UNREADABLE else ""
        found.append(Event(at, "left-out", f"attempt {number}: {least}{left_out_words(reading.left_out)}"))
    if reading.unreadable:
        count = f"{reading.unreadable} {'line' if reading.unreadable == 1 else 'lines'}"
        least = "at least " if reading.unreadable >= MOST_UNREADABLE else ""
        text = f"{least}{count} of the events of attempt {number} cannot be read"
        found.append(Event(at, "events-unreadable", f"{text}: {reading.why}"))
    return found


def told_once(events: Iterable[Event]) -> list[Event]:
    """Without repetitions: each attempt reports again in which form of lines its metrics were found."""
    found, told = [], set()
    for event in events:
        shape = event.text.partition(":")[0] if event.kind == METRICS else ""
        if not shape or shape not in told:
            found.append(event)
        told.add(shape)
    return found


class _Reading:
    def __init__(self, since: datetime, now: datetime) -> None:
        self._since = since
        self._now = now
        self.left_out = self.unreadable = 0
        self.why = ""  # of the first that cannot be read

    def events(self, written: Iterator[bytes]) -> Iterator[Event]:
        kinds: Counter[str] = Counter()
        for line in written:
            if self.unreadable >= MOST_UNREADABLE or self.left_out >= MOST_UNREADABLE:
                return
            if kinds.total() >= MOST_EVENTS:
                self.left_out += 1  # not worth reading: it is not shown
                continue
            try:
                event = untrusted.load(Event, line, self._now)
            except Malformed as error:
                self.unreadable, self.why = self.unreadable + 1, self.why or error.message
                continue
            at = min(max(event.at, self._since), self._now)
            event = replace(event, at=at, kind=event.kind[:_LONGEST_KIND], text=event.text[:_LONGEST_TEXT])
            if kinds[event.kind] >= MOST_OF_A_KIND:
                self.left_out += 1
                continue
            kinds[event.kind] += 1
            yield event
