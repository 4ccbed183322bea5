"""What an agent adds to the timeline of its run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime

from stoker.errors import Malformed
from stoker.model import layout, untrusted
from stoker.model.run import Attempt, Event
from stoker.server.database import left_out_words
from stoker.server.lines import MOST_UNREADABLE, lines
from stoker.stores import Store

MOST_EVENTS = 1000  # of one attempt
MOST_OF_A_KIND = 200  # likewise, so that one kind crowds out no other
_MOST_BYTES = 16 << 20
_LONGEST_KIND = 40
_LONGEST_TEXT = 4000


def agent_events(store: Store, run_id: str, attempt: Attempt, now: datetime) -> list[Event]:
    """Of one attempt, in their order. What is too much is counted in one event of its own, and so are lines that no
    agent writes. A node's clock moves nothing to before its attempt, or into the future."""
    number, reading = attempt.number, _Reading(attempt.asked_at, now)
    found = list(reading.events(lines(store, layout.events(run_id, number), _MOST_BYTES)))
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
