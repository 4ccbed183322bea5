"""What happens to a run, from several sources at once, as one stream: its facts, and what each rank prints."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from stoker.client.handle import Run
from stoker.client.tail import OUTAGES, Waits
from stoker.errors import NotFound, StoreFailed, Unanswered
from stoker.model.run import Run as Facts


@dataclass(frozen=True, slots=True)
class Source:
    """One rank's log in one attempt."""

    attempt: int
    rank: int


@dataclass(frozen=True, slots=True)
class Changed:
    facts: Facts


@dataclass(frozen=True, slots=True)
class Printed:
    source: Source
    data: bytes


@dataclass(frozen=True, slots=True)
class Finished:
    """Everything the source had has been printed, but for what is `unread` for this reason."""

    source: Source
    unread: str = ""


@dataclass(frozen=True, slots=True)
class Away:
    """Server or store do not answer, for this reason: a source waits for them."""

    reason: str


@dataclass(frozen=True, slots=True)
class Broke:
    """A source cannot go on."""

    error: Exception


Happening = Changed | Printed | Finished | Away | Broke

_AGAIN_S = 2.0  # until a server that does not answer is asked again


class Feed:
    """Sources run in threads of their own that end with the process. Whoever reads the feed does so in one thread, so
    that a Ctrl-C always finds it waiting here. A slow reader slows the sources down instead of filling memory.

    Each source has its own copy of the run's handle: what one has asked must not make another miss a change.
    """

    def __init__(self) -> None:
        self._happenings: queue.Queue[Happening] = queue.Queue(maxsize=64)

    def follow(self, source: Iterator[Happening]) -> None:
        threading.Thread(target=self._pump, args=(source,), daemon=True).start()

    def tell(self, happening: Happening) -> None:
        """From within a source."""
        self._happenings.put(happening)

    def next(self, timeout_s: float) -> Happening | None:
        """None where nothing happened in this time."""
        try:
            return self._happenings.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def _pump(self, source: Iterator[Happening]) -> None:
        try:
            for happening in source:
                self._happenings.put(happening)
        except Exception as error:  # told in the reader's thread, where it can be handled
            self._happenings.put(Broke(error))


def changes(run: Run, waits: Waits) -> Iterator[Happening]:
    """The facts until the run has ended and its outputs have landed."""
    handle = copy(run)
    while True:
        try:
            for facts in handle.changes():
                yield Changed(facts)
            return
        except OUTAGES as error:
            if not waits(error):
                raise
        time.sleep(_AGAIN_S)


def printed(
    run: Run, source: Source, waits: Waits, *, since: datetime | None = None, offset: int = 0
) -> Iterator[Happening]:
    """A log that was never written is an empty one: its attempt ended before the script could start."""
    try:
        options: Any = {"follow": True, "since": since, "offset": offset, "waits": waits}
        for data in copy(run).logs(source.rank, source.attempt, **options):
            yield Printed(source, data)
    except NotFound:
        pass
    except (StoreFailed, Unanswered) as error:
        yield Finished(source, error.message)
        return
    yield Finished(source)
