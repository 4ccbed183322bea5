"""The output of a run: its events and the output of its ranks, shown as text or JSON lines."""

from __future__ import annotations

import codecs
import queue
import sys
import threading
import time
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from stoker.cli.view.logview import View, view_for
from stoker.cli.view.terminal import can_erase, finished, is_terminal, paint_data, redraw, say, show_json, width, write
from stoker.cli.view.words import clipped
from stoker.client.api.handle import RunHandle
from stoker.client.api.reading import OUTAGES, Waits
from stoker.errors import NotFound, StoreFailed, Unanswered
from stoker.model.run.run import Run

_RANK_STYLES = ("busy", "good", "warn", "strong")


class Printer(Protocol):
    ranks: int  # number of ranks to label

    def text(self, source: LogSource, data: bytes) -> None: ...
    def finish(self, source: LogSource) -> None:
        """The source has ended."""
        ...

    def event(self, name: str, facts: Run, **more: Any) -> None:
        """Something that programs need."""
        ...

    def note(self, text: str) -> None:
        """Something that only people need."""
        ...

    def status(self, text: str) -> None:
        """The current status: a line that the next one replaces. Empty: none."""
        ...


class TextPrinter:
    """With `exact`, a single rank that is not shown on a terminal keeps every byte."""

    def __init__(self, *, live: bool, exact: bool = False, raw: bool = False) -> None:
        self._live = live
        self._exact = exact
        self._raw = raw
        self._terminal = is_terminal(sys.stdout)
        self._views: dict[LogSource, View] = {}
        self._unfinished: LogSource | None = None  # the source whose text ended within a line
        self._status = ""  # as shown on the terminal
        self._has_status = live and self._terminal and is_terminal(sys.stderr) and can_erase()
        self.ranks = 1

    def text(self, source: LogSource, data: bytes) -> None:
        self._put(source, self._view(source).feed(data))

    def finish(self, source: LogSource) -> None:
        self._put(source, self._view(source).finish())
        self._views.pop(source, None)
        if self.ranks > 1 and self._unfinished == source:  # ranks alternate by whole lines
            self._put(source, b"\n")

    def event(self, name: str, facts: Run, **more: Any) -> None:
        pass

    def note(self, text: str) -> None:
        self.status("")
        if self._unfinished and self._terminal:
            write(b"\n")
            self._unfinished = None
        say(text)

    def status(self, text: str) -> None:
        """Overwritten in one go, so that nothing flickers, and never within a line of the script."""
        if not self._has_status or text == self._status or (text and self._unfinished):
            return
        self._status = clipped(text, width() - 1)
        redraw(paint_data(self._status, "faint"))

    def _put(self, source: LogSource, text: bytes) -> None:
        if not text:
            return
        self.status("")
        if self.ranks > 1 and self._unfinished not in (None, source):
            text = b"\n" + text
        write(text)
        self._unfinished = None if text.endswith(b"\n") else source

    def _view(self, source: LogSource) -> View:
        if source not in self._views:
            raw = self._raw or (self._exact and not self._terminal and self.ranks == 1)
            prefix = self._prefix(source.rank) if self.ranks > 1 else b""
            self._views[source] = view_for(raw=raw, terminal=self._terminal, live=self._live, prefix=prefix)
        return self._views[source]

    def _prefix(self, rank: int) -> bytes:
        label = f"[{rank:>{len(str(self.ranks - 1))}}]"
        return finished(f"{paint_data(label, _RANK_STYLES[rank % len(_RANK_STYLES)])} ").encode()


class JsonPrinter:
    """One object per line, each with its `event`."""

    def __init__(self) -> None:
        self._decoders: dict[LogSource, codecs.IncrementalDecoder] = {}
        self.ranks = 1

    def text(self, source: LogSource, data: bytes) -> None:
        self._log(source, self._decoder(source).decode(data))

    def finish(self, source: LogSource) -> None:
        self._log(source, self._decoder(source).decode(b"", final=True))
        self._decoders.pop(source, None)

    def event(self, name: str, facts: Run, **more: Any) -> None:
        show_json({"event": name, **more, "run": facts})

    def note(self, text: str) -> None:
        pass

    def status(self, text: str) -> None:
        pass

    def _log(self, source: LogSource, text: str) -> None:
        if text:
            show_json({"event": "log", "rank": source.rank, "attempt": source.attempt, "text": text})

    def _decoder(self, source: LogSource) -> codecs.IncrementalDecoder:
        if source not in self._decoders:
            self._decoders[source] = codecs.getincrementaldecoder("utf-8")("replace")
        return self._decoders[source]


@dataclass(frozen=True, slots=True)
class LogSource:
    """One rank's log in one attempt."""

    attempt: int
    rank: int


@dataclass(frozen=True, slots=True)
class Changed:
    facts: Run


@dataclass(frozen=True, slots=True)
class Printed:
    source: LogSource
    data: bytes


@dataclass(frozen=True, slots=True)
class Finished:
    """Everything of the source has been printed, except what is `unread` for this reason."""

    source: LogSource
    unread: str = ""


@dataclass(frozen=True, slots=True)
class Away:
    """The server or store does not respond, for this reason: a source waits for it."""

    reason: str


@dataclass(frozen=True, slots=True)
class Broke:
    """A source cannot continue."""

    error: Exception


Happening = Changed | Printed | Finished | Away | Broke

_AGAIN_S = 2.0  # between two requests to a server that does not respond


class Feed:
    """Sources run in threads that end with the process. One thread reads the feed, so that a Ctrl-C always finds it
    waiting here. A slow reader slows the sources down instead of filling memory.

    Each source has its own copy of the run's handle: a request of one must not make another miss a change.
    """

    def __init__(self) -> None:
        self._happenings: queue.Queue[Happening] = queue.Queue(maxsize=64)

    def follow(self, source: Iterator[Happening]) -> None:
        threading.Thread(target=self._pump, args=(source,), daemon=True).start()

    def tell(self, happening: Happening) -> None:
        """Called from within a source."""
        self._happenings.put(happening)

    def next(self, timeout_s: float) -> Happening | None:
        """None if nothing happened in this time."""
        try:
            return self._happenings.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def _pump(self, source: Iterator[Happening]) -> None:
        try:
            for happening in source:
                self._happenings.put(happening)
        except Exception as error:  # raised in the reader's thread, where it can be handled
            self._happenings.put(Broke(error))


def changes(run: RunHandle, waits: Waits) -> Iterator[Happening]:
    """The facts until the run has ended and its outputs are downloaded."""
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
    run: RunHandle, source: LogSource, waits: Waits, *, since: datetime | None = None, offset: int = 0
) -> Iterator[Happening]:
    """A log that does not exist counts as empty: its attempt ended before the script started."""
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
