"""Follows a run until it has ended: prints its output, and what it waits for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime

from stoker.cli.view.printer import (
    Away,
    Broke,
    Changed,
    Feed,
    Finished,
    Happening,
    LogSource,
    Printed,
    Printer,
    changes,
    printed,
)
from stoker.cli.view.terminal import one_line
from stoker.client.api.client import Client
from stoker.client.api.handle import RunHandle
from stoker.client.api.reading import OUTAGES
from stoker.errors import ServerUnavailable, StokerError
from stoker.model.run.run import Attempt, Run, RunState

PATIENCE_S = 1.0  # how long silence needs no explanation
_TICK_S = 0.2
_ASK_EVERY_S = 2.0
_TROUBLE_EVERY_S = 5.0  # a healthy run needs no polling
_NEWS_AT_LEAST_EVERY_S = 60.0
_NEWS = ("metrics", "metric-missing")


@dataclass(frozen=True, slots=True)
class Selection:
    """Which output to show: from attempt `first` on, of these ranks, only what is newer than `since`, and of that first
    attempt only what comes after a rank's offset."""

    first: int = 1
    ranks: tuple[int, ...] | None = None  # None: all
    since: datetime | None = None
    offsets: Mapping[int, int] = field(default_factory=dict)


EVERYTHING = Selection()


class LiveView:
    """`why` returns what a queued run waits for."""

    def __init__(
        self, run: RunHandle, printer: Printer, why: Callable[[Run], str], wanted: Selection = EVERYTHING
    ) -> None:
        self.run = run
        self.printer = printer
        self.facts = run.facts
        self._why = why
        self._wanted = wanted
        self._shown = self._wanted.first - 1  # the newest attempt whose logs are open
        self._open: set[LogSource] = set()
        self._known: set[LogSource] = set()  # all sources opened so far
        self._listed_at = 0.0
        self._told: set[str] = set()  # events already printed
        self._asked_news_at = time.monotonic()
        self._news_every_s = _TROUBLE_EVERY_S
        self._feed = Feed()
        self._explained = ""
        self._away = ""  # why the server or store does not respond; empty if it does
        self._quiet_since = time.monotonic()  # time of the last output or change of state
        self._asked_at = 0.0  # when the server was last asked why the run waits

    def until_end(self) -> Run:
        """Returns the last facts. A Ctrl-C leaves here as KeyboardInterrupt, and the run continues."""
        self._feed.follow(changes(self.run, self._waits))
        while not self._over():
            self._tell_news()
            match self._feed.next(_TICK_S):
                case Changed(facts):
                    self._changed(facts)
                case Printed(source, data):
                    self._quiet_since, self._away = time.monotonic(), ""
                    self.printer.text(source, data)
                case Finished(source, unread):
                    self._open.discard(source)
                    self.printer.finish(source)
                    if unread:
                        self.printer.note(f"the rest of its output cannot be read now: {one_line(unread)}")
                    with suppress(*OUTAGES):  # retried while idle
                        self._open_next()
                case Away(reason):
                    self._tell_away(reason)
                case Broke(error):
                    raise error
                case None:
                    with suppress(*OUTAGES):  # reported by the source that waits for its end
                        self._open_next()
                        self._explain()
                    self.printer.status(self._meter())
        self.printer.status("")
        if self.facts.metrics:
            with suppress(*OUTAGES):  # `stoker metrics` says it later
                self._tell_metrics()
        return self.facts

    def _waits(self, error: StokerError) -> bool:
        """Waits for a server without limit; for a store, until the run has ended: its output can be read later."""
        if self.facts.state.ended and not isinstance(error, ServerUnavailable):
            return False
        self._feed.tell(Away(error.message))
        return True

    def _tell_away(self, reason: str) -> None:
        """Printed once, until there is output again."""
        if not self._away:
            self.printer.note(f"waiting: {one_line(reason)} (Ctrl-C detaches; the run continues)")
        self._away = reason

    def _over(self) -> bool:
        all_shown = not self._open and self._shown >= len(self.facts.attempts)
        at_rest = self.facts.state.ended or self.facts.state is RunState.PAUSED
        return at_rest and not self.facts.landing and all_shown

    def _changed(self, facts: Run) -> None:
        if facts.state is not self.facts.state:
            self._quiet_since = time.monotonic()
        if facts.warned_usd > self.facts.warned_usd:
            self.printer.note(
                f"most of its budget of ${facts.warned_usd:.2f} is spent: see `stoker budget {facts.name}`"
            )
            self.printer.event("budget-warning", facts)
        self.facts, self._away = facts, ""
        with suppress(*OUTAGES):  # retried while idle
            self._open_next()

    def _open_next(self) -> None:
        """Opens the logs of the next attempt once those of the previous one have ended."""
        self._open_late()
        if self._open or self._shown >= len(self.facts.attempts):
            return
        attempt = self.facts.attempts[self._shown]
        ranks = self._wanted.ranks if self._wanted.ranks is not None else self._all_ranks(attempt)
        if ranks is None or (not ranks and not attempt.state.over):
            return
        self._shown = attempt.number
        if attempt.number > self._wanted.first:
            announce(self.facts, attempt.number, self.printer)
        self._follow(LogSource(attempt.number, rank) for rank in ranks)
        if not ranks:
            self._open_next()

    def _open_late(self) -> None:
        """If the node decides the number of ranks, a rank is known only once it has printed."""
        if self._wanted.ranks is not None or isinstance(self.facts.job.processes, int) or not self._known:
            return
        if self._open and not self._may_list():
            return
        there = {LogSource(log.attempt, log.rank) for log in self.run.log_list() if log.attempt == self._shown}
        self._follow(there - self._known)

    def _follow(self, sources: Iterable[LogSource]) -> None:
        opened = sorted(sources, key=lambda one: one.rank)
        self._known.update(opened)
        self._open.update(opened)
        self.printer.ranks = max(self.printer.ranks, sum(one.attempt == self._shown for one in self._known))
        for source in opened:
            self._feed.follow(self._printed(source))

    def _may_list(self) -> bool:
        now = time.monotonic()
        if now - self._listed_at < PATIENCE_S:
            return False
        self._listed_at = now
        return True

    def _printed(self, source: LogSource) -> Iterator[Happening]:
        offset = self._wanted.offsets.get(source.rank, 0) if source.attempt == self._wanted.first else 0
        return printed(self.run, source, self._waits, since=self._wanted.since, offset=offset)

    def _all_ranks(self, attempt: Attempt) -> tuple[int, ...] | None:
        """None while the number is unknown: with one rank per GPU, the node decides."""
        job = self.facts.job
        if isinstance(job.processes, int):
            return tuple(range(job.most_nodes * job.processes))
        if attempt.started_at or attempt.state.over:
            return tuple(sorted(log.rank for log in self.run.log_list() if log.attempt == attempt.number))
        return None

    def _tell_news(self) -> None:
        """Prints from time to time which metrics were found; more often if the job waits for one."""
        job, now = self.facts.job, time.monotonic()
        if self.facts.state is not RunState.RUNNING or now - self._asked_news_at < self._news_every_s:
            return
        self._asked_news_at = now
        if not (job.stop_when or job.retention.best):
            self._news_every_s = min(2 * self._news_every_s, _NEWS_AT_LEAST_EVERY_S)
        with suppress(*OUTAGES):
            self._tell_metrics()

    def _tell_metrics(self) -> None:
        """In which lines metrics were found, and which one is missing."""
        for text in metric_news(self.run):
            if text not in self._told:
                self._told.add(text)
                self.printer.note(text)

    def _meter(self) -> str:
        """The cost so far, once there is no output for a moment: between lines in quick succession it would only
        flicker."""
        if not self.facts.spells or time.monotonic() - self._quiet_since < PATIENCE_S:
            return ""
        from stoker.cli.view.words import meter_line  # needed only for a run that costs money

        return meter_line(self.facts, datetime.now(UTC))

    def _explain(self) -> None:
        """Prints what the run waits for once that takes longer than a moment, and again when it changes."""
        if time.monotonic() - self._quiet_since < PATIENCE_S:
            return
        text = self._waits_for()
        if text and text != self._explained:
            self._explained = text
            self.printer.note(one_line(text))

    def _waits_for(self) -> str:
        match self.facts.state:
            case RunState.QUEUED if self._may_ask():
                reason = self._why(self.facts)
                return f"waiting: {reason}" if reason else ""
            case RunState.STARTING if self._may_ask():
                if reason := self._why(self.facts):
                    return f"starting: {reason}"
                events = self.run.events()
                return f"starting: {events[-1].text}" if events else ""
            case RunState.RUNNING if self._may_ask(_TROUBLE_EVERY_S):
                reason = self._why(self.facts)
                return f"waiting: {reason}" if reason else "saving the outputs …" if not self._open else ""
            case _ if self.facts.landing:
                return "downloading the outputs …"
        return ""

    def _may_ask(self, every_s: float = _ASK_EVERY_S) -> bool:
        """Not on every tick."""
        now = time.monotonic()
        if now - self._asked_at < every_s:
            return False
        self._asked_at = now
        return True


def metric_news(run: RunHandle) -> list[str]:
    """The events about metrics that were found in the output, and about a missing one."""
    return [one_line(event.text) for event in run.events() if event.kind in _NEWS]


def announce(facts: Run, number: int, printer: Printer) -> None:
    """The line between the output of two attempts: how the previous one ended."""
    before = facts.attempts[number - 2].message
    printer.note(f"attempt {number} starts" + (f": {one_line(before)}" if before else ""))
    printer.event("attempt", facts, attempt=number)


# Why a run waits, as text.


def why(client: Client, run: Run) -> str:
    """Asks the server, which knows the obstacles; empty if there are none."""
    return client.run(run.name).facts.reason
