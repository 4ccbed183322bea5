"""The thread that writes. The training hands over a snapshot and goes on; a newer one may take its place."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from stoker.checkpoint.buffers import Buffers
from stoker.checkpoint.leaves import Leaf
from stoker.checkpoint.shelf import say
from stoker.checkpoint.snapshot import Snapshot
from stoker.checkpoint.worker import Worker
from stoker.checkpoint.writing import Dropped, Orders

Save = Callable[[Snapshot, Orders], Path | None]  # puts a snapshot on the shelf


class Writer:
    """At most two copies of the state exist: one being written, one waiting. The second is made only if needed."""

    def __init__(self, save: Save) -> None:
        self._save = save
        self._changed = threading.Condition()
        self._spare: list[Buffers] = [Buffers()]
        self._waiting: Snapshot | None = None
        self._writing: Snapshot | None = None
        self._hurry = False
        self._worker = Worker("stoker-checkpoint")
        self._at_work = False
        self.trouble: str | None = None
        self.written_s = 0.0
        self.last: Path | None = None

    @property
    def idle(self) -> bool:
        return self._waiting is None and self._writing is None

    def take_buffers(self) -> Buffers:
        """Waits for nothing: an unfinished save that has not been begun gives up its memory."""
        with self._changed:
            if self._waiting is not None:
                dropped, self._waiting = self._waiting, None
                assert isinstance(dropped.buffers, Buffers)
                return dropped.buffers
            return self._spare.pop() if self._spare else Buffers()

    def give_back(self, buffers: Buffers) -> None:
        with self._changed:
            self._spare.append(buffers)

    def prepare(self, leaves: Mapping[str, Leaf], values: Mapping[str, Any]) -> None:
        """Gets memory for a state like this one, in the background. A save that comes before makes its own."""
        with self._changed:
            if not self._spare:
                return
            buffers = self._spare.pop()

        def work() -> None:
            buffers.prepare(leaves, values)
            self.give_back(buffers)

        Worker("stoker-buffers").hand(work)

    def submit(self, snapshot: Snapshot, *, hurry: bool = False) -> None:
        """To be written once `begin` is called. With `hurry` a save under way is given up for this one, and all cores
        work on it."""
        with self._changed:
            self._waiting = snapshot
            self._hurry = hurry

    def begin(self) -> None:
        with self._changed:
            if self._at_work:
                return
            self._at_work = True
        self._worker.hand(self._work)

    def finish(self, timeout_s: float | None = None) -> bool:
        """Waits until everything handed over is safe, dropped or failed."""
        with self._changed:
            return self._changed.wait_for(lambda: self.idle, timeout_s)

    def _work(self) -> None:
        while (snapshot := self._next()) is not None:
            self._write(snapshot)
            with self._changed:
                self._writing = None
                self._spare.append(snapshot.buffers)
                self._changed.notify_all()

    def _next(self) -> Snapshot | None:
        with self._changed:
            self._writing, self._waiting = self._waiting, None
            self._at_work = self._writing is not None
            return self._writing

    def _write(self, snapshot: Snapshot) -> None:
        begun = time.monotonic()
        try:
            made = self._save(snapshot, Orders(4 if self._hurry else 1, self._overtaken, self._newer_waits))
        except Dropped:
            return
        except Exception as error:  # whatever it is, the training must go on
            reason = "the disk is full" if isinstance(error, OSError) and error.errno == errno.ENOSPC else repr(error)
            self.trouble = f"step {snapshot.step} was not saved: {reason}"
            say(f"{self.trouble}; training goes on, and the next save tries again")
            return
        self.trouble = None
        self.last = made
        self.written_s = time.monotonic() - begun

    def _newer_waits(self) -> bool:
        return self._waiting is not None

    def _overtaken(self) -> bool:
        return self._hurry and self._newer_waits()
