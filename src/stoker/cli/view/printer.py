"""The output of a run: one stream of what happens to it and what its ranks print, shown as text or lines of JSON."""

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
from stoker.cli.view.tables import clipped
from stoker.cli.view.terminal import can_erase, finished, is_terminal, paint_data, redraw, say, show_json, width, write
from stoker.client.api.handle import Run
from stoker.client.api.tail import OUTAGES, Waits
from stoker.errors import NotFound, StoreFailed, Unanswered
from stoker.model.run.run import Run as Facts

_RANK_STYLES = ("busy", "good", "warn", "strong")


class Printer(Protocol):
    ranks: int  # how many there are to tell apart

    def text(self, source: LogSource, data: bytes) -> None: ...
    def finish(self, source: LogSource) -> None:
        """Nothing more comes from there."""
        ...

    def event(self, name: str, facts: Facts, **more: Any) -> None:
        """Something a program wants to know."""
        ...

    def note(self, text: str) -> None:
        """Something only a person wants to know."""
        ...

    def status(self, text: str) -> None:
        """How it stands now: a line that is replaced by the next. Empty: none."""
        ...


class TextPrinter:
    """With `exact`, a single rank that is not looked at on a terminal keeps every byte."""

    def __init__(self, *, live: bool, exact: bool = False, raw: bool = False) -> None:
        self._live = live
        self._exact = exact
        self._raw = raw
        self._terminal = is_terminal(sys.stdout)
        self._views: dict[LogSource, View] = {}
        self._unfinished: LogSource | None = None  # whose text ended within a line
        self._status = ""  # as it stands on the terminal
        self._has_status = live and self._terminal and is_terminal(sys.stderr) and can_erase()
        self.ranks = 1

    def text(self, source: LogSource, data: bytes) -> None:
        self._put(source, self._view(source).feed(data))

    def finish(self, source: LogSource) -> None:
        self._put(source, self._view(source).finish())
        self._views.pop(source, None)
        if self.ranks > 1 and self._unfinished == source:  # ranks share the page by whole lines
            self._put(source, b"\n")

    def event(self, name: str, facts: Facts, **more: Any) -> None:
        pass

    def note(self, text: str) -> None:
        self.status("")
        if self._unfinished and self._terminal:
            write(b"\n")
            self._unfinished = None
        say(text)

    def status(self, text: str) -> None:
        """Written over in one go, so that nothing flickers, and never into a line that a script has begun."""
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

    def event(self, name: str, facts: Facts, **more: Any) -> None:
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
    facts: Facts


@dataclass(frozen=True, slots=True)
class Printed:
    source: LogSource
    data: bytes


@dataclass(frozen=True, slots=True)
class Finished:
    """Everything the source had has been printed, but for what is `unread` for this reason."""

    source: LogSource
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
    run: Run, source: LogSource, waits: Waits, *, since: datetime | None = None, offset: int = 0
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
