"""Code that a submission is about to use, which the removal of unused code must skip."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from stoker.errors import Unanswered
from stoker.model.workspace.store import FOLDER

Files = frozenset[str]
NONE: Files = frozenset()

PATIENCE_S = 3600.0  # after which a submission that has not arrived is given up
WAIT_S = 25.0  # for a removal, in each of two stores: shorter than the client's time-out


@dataclass(frozen=True, slots=True)
class Coming:
    """Snapshots that are about to be used, and files that are being uploaded for them."""

    snapshots: frozenset[str]
    files: Files


class Arrivals:
    """A submission checks what the store has, and its run refers to the code only later. In between, none of it may be
    deleted. A submission waits for a running removal in that store, and the next removal sees it.

    It is kept in memory: after a restart of the server, a submission in progress gets the error that code is missing,
    and uploads it again. Called from several threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, wait_s: float = WAIT_S) -> None:
        self._clock = clock
        self._wait_s = wait_s
        self._expected: dict[str, tuple[float, Files]] = {}  # by snapshot: when it expires, and its files
        self._using: Counter[tuple[str, Files]] = Counter()
        self._facts = threading.Lock()
        self._removing: dict[str, Any] = {}  # by store: a reentrant lock

    @contextmanager
    def using(self, store: str, snapshot: str, files: Files = NONE) -> Iterator[None]:
        """None of it is deleted meanwhile. May wait for a removal at the start."""
        self.begin(store, snapshot, files)
        try:
            yield
        finally:
            self.end(snapshot, files)

    def begin(self, store: str, snapshot: str, files: Files = NONE) -> None:
        """Raises Unanswered where a removal takes too long."""
        # The folder comes last: waiting for a removal in a remote store then blocks nobody else.
        with self._turn(store, self._wait_s), self._turn(FOLDER, self._wait_s), self._facts:
            self._using[snapshot, files] += 1

    def end(self, snapshot: str, files: Files = NONE) -> None:
        """Never waits."""
        with self._facts:
            self._using[snapshot, files] -= 1

    def expect(self, snapshot: str, files: Files) -> None:
        """A run is about to refer to it, or its files are being uploaded. Never waits: call it inside `using`."""
        with self._facts:
            self._expected[snapshot] = self._clock() + PATIENCE_S, files

    def arrived(self, snapshot: str) -> None:
        """A run refers to it now. Never waits. Another submission of the same code may have to upload it again, if that
        run is removed first."""
        with self._facts:
            self._expected.pop(snapshot, None)

    @contextmanager
    def still(self, store: str) -> Iterator[Coming]:
        """What is coming; no submission starts in this store meanwhile."""
        with self._turn(store):
            yield self._coming()

    def _coming(self) -> Coming:
        with self._facts:
            now = self._clock()
            self._expected = {one: known for one, known in self._expected.items() if known[0] > now}
            self._using = +self._using
            known = [*self._using, *((snapshot, files) for snapshot, (_, files) in self._expected.items())]
            snapshots = frozenset(snapshot for snapshot, _ in known)
            return Coming(snapshots, frozenset(one for _, files in known for one in files))

    @contextmanager
    def _turn(self, store: str, wait_s: float = -1) -> Iterator[None]:
        with self._facts:
            lock = self._removing.setdefault(store, threading.RLock())
        if not lock.acquire(timeout=wait_s):
            raise Unanswered(f"old code is being removed from the store `{store}`", hint="try again in a moment")
        try:
            yield
        finally:
            lock.release()
