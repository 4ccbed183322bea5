"""Standing by a run until it has ended: what it prints goes on, and what it waits for is said."""

from __future__ import annotations

import time
from datetime import datetime

from stoker.cli.feed import Broke, Changed, Feed, Finished, Printed, Source, changes, printed
from stoker.cli.printer import Printer
from stoker.client.handle import Run
from stoker.model.run import AttemptState, RunState
from stoker.model.run import Run as Facts

PATIENCE_S = 1.0  # how long nothing needs to be explained
_TICK_S = 0.2
_TIMELINE_LOOK_S = 2.0


class Watch:
    """`first` is the attempt to begin with, `ranks` those to show (None: all); `since`, or `offsets` by rank, say where
    in the logs of that attempt."""

    def __init__(
        self,
        run: Run,
        printer: Printer,
        *,
        first: int = 1,
        ranks: list[int] | None = None,
        since: datetime | None = None,
        offsets: dict[int, int] | None = None,
    ) -> None:
        self.run = run
        self.printer = printer
        self.facts = run.facts
        self._ranks = ranks
        self._since = since
        self._offsets = offsets or {}
        self._shown = first - 1  # the newest attempt whose logs were opened
        self._first = first
        self._open: set[Source] = set()
        self._feed = Feed()
        self._explained = ""
        self._quiet_since = time.monotonic()  # nothing was printed since, and the run's state did not change
        self._timeline_looked = 0.0

    def until_end(self) -> Facts:
        """Returns the last facts. A Ctrl-C comes out of here as KeyboardInterrupt, with the run going on."""
        self._feed.follow(changes(self.run))
        while not self._over():
            match self._feed.next(_TICK_S):
                case Changed(facts):
                    self._changed(facts)
                case Printed(source, data):
                    self._quiet_since = time.monotonic()
                    self.printer.text(source, data)
                case Finished(source):
                    self._open.discard(source)
                    self.printer.finish(source)
                    self._open_next()
                case Broke(error):
                    raise error
                case None:
                    self._explain()
        return self.facts

    def _over(self) -> bool:
        all_shown = not self._open and self._shown >= len(self.facts.attempts)
        return self.facts.state.ended and not self.facts.landing and all_shown

    def _changed(self, facts: Facts) -> None:
        if facts.state is not self.facts.state:
            self._quiet_since = time.monotonic()
        self.facts = facts
        self._open_next()

    def _open_next(self) -> None:
        """Opens the logs of the next attempt once those of the one before have come to their end."""
        if self._open or self._shown >= len(self.facts.attempts):
            return
        attempt = self.facts.attempts[self._shown]
        ranks = self._ranks if self._ranks is not None else self._all_ranks(attempt.number)
        if ranks is None:
            return
        self._shown = attempt.number
        if attempt.number > self._first:
            before = self.facts.attempts[attempt.number - 2].message
            self.printer.note(f"attempt {attempt.number} starts" + (f": {before}" if before else ""))
            self.printer.event("attempt", self.facts, attempt=attempt.number)
        self.printer.ranks = max(self.printer.ranks, len(ranks))
        self._open = {Source(attempt.number, rank) for rank in ranks}
        at_first = attempt.number == self._first
        for source in sorted(self._open, key=lambda source: source.rank):
            offset = self._offsets.get(source.rank, 0) if at_first else 0
            since = self._since if at_first else None
            self._feed.follow(printed(self.run, source, follow=True, since=since, offset=offset))
        if not ranks:
            self._open_next()

    def _all_ranks(self, number: int) -> list[int] | None:
        """None while it is not known how many there are: with one per GPU, the node decides."""
        job, attempt = self.facts.job, self.facts.attempts[number - 1]
        if isinstance(job.processes, int):
            return list(range(job.nodes * job.processes))
        if attempt.started_at or attempt.state in (AttemptState.ENDED, AttemptState.LOST):
            return [log.rank for log in self.run.log_list() if log.attempt == number]
        return None

    def _explain(self) -> None:
        """Says what the run waits for once that takes longer than a moment, and only once."""
        now = time.monotonic()
        if now - self._quiet_since < PATIENCE_S:
            return
        text = ""
        match self.facts.state:
            case RunState.QUEUED:
                text = f"waiting: {self.facts.reason or 'for a node'}"
            case RunState.STARTING if now - self._timeline_looked > _TIMELINE_LOOK_S:
                self._timeline_looked = now
                events = self.run.events()
                text = f"starting: {events[-1].text}" if events else ""
            case RunState.RUNNING if not self._open:
                text = "saving the outputs …"
            case _ if self.facts.landing:
                text = "bringing the outputs back …"
        if text and text != self._explained:
            self._explained = text
            self.printer.note(text)
