"""Code that a submission is about to use: whoever removes unused code leaves it alone."""

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

PATIENCE_S = 3600.0  # a submission that has not arrived by then is given up
WAIT_S = 25.0  # for a removal, in each of two stores: sooner than whoever asked hangs up, and nobody would end it


@dataclass(frozen=True, slots=True)
class Coming:
    """Snapshots that are about to be used, and files that are being sent for them."""

    snapshots: frozenset[str]
    files: Files


class Arrivals:
    """A submission looks at what the store has, and its run names the code only later. Between the two, nothing of it
    may be removed. Whoever begins waits while a removal in that store is under way, and is seen by the next one.

    It lives in memory: a submission that a restart of the server cuts in two is told that code is missing, and sends it
    again. Called from several threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, wait_s: float = WAIT_S) -> None:
        self._clock = clock
        self._wait_s = wait_s
        self._expected: dict[str, tuple[float, Files]] = {}  # snapshot to the end of patience, and its files
        self._using: Counter[tuple[str, Files]] = Counter()
        self._facts = threading.Lock()
        self._removing: dict[str, Any] = {}  # by store: a lock that one thread may take twice

    @contextmanager
    def using(self, store: str, snapshot: str, files: Files = NONE) -> Iterator[None]:
        """Nothing of it is removed meanwhile. May wait for a removal before it begins."""
        self.begin(store, snapshot, files)
        try:
            yield
        finally:
            self.end(snapshot, files)

    def begin(self, store: str, snapshot: str, files: Files = NONE) -> None:
        """Raises Unanswered where a removal takes too long."""
        # The folder's turn comes last: whoever waits for a removal in a far store holds up nobody else meanwhile.
        with self._turn(store, self._wait_s), self._turn(FOLDER, self._wait_s), self._facts:
            self._using[snapshot, files] += 1

    def end(self, snapshot: str, files: Files = NONE) -> None:
        """Never waits."""
        with self._facts:
            self._using[snapshot, files] -= 1

    def expect(self, snapshot: str, files: Files) -> None:
        """A run is about to name it, or its files are on their way. Never waits: say it while `using` it."""
        with self._facts:
            self._expected[snapshot] = self._clock() + PATIENCE_S, files

    def arrived(self, snapshot: str) -> None:
        """A run names it now. Never waits. Another submission of the same code may have to send it again, if that run
        is removed before it arrives."""
        with self._facts:
            self._expected.pop(snapshot, None)

    @contextmanager
    def still(self, store: str) -> Iterator[Coming]:
        """What is coming; nobody else begins in this store as long as this lasts."""
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
