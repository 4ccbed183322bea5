"""The checkpoint folders of a run, watched: what is finished is committed to the store as one set, or not at all."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from stoker.agent.contents import Changing, Contents, Mark, mark_of
from stoker.agent.openfiles import being_written
from stoker.agent.pace import Patience, Trouble
from stoker.agent.processes import belonging_to
from stoker.agent.restoring import read_fences
from stoker.agent.tree import walk
from stoker.agent.worker import Worker
from stoker.errors import AlreadyThere, StokerError
from stoker.model import layout
from stoker.model.checkpoint import CheckpointSet, fenced, retained
from stoker.model.orders import Orders
from stoker.model.snapshot import Entry, EntryKind
from stoker.model.wire import dump
from stoker.stores import Store

EVERY_S = 0.25
QUIET_S = 0.5  # a file that nobody has open and that has not changed for this long is finished

Facts = Callable[[], tuple[float | None, Mapping[str, float]]]  # the last step and values the script reported


@dataclass(slots=True)
class _File:
    """What is known of one file. `entry` speaks of its last finished content, which may be an older one."""

    mark: Mark
    since: float
    shipped: Mark | None = None
    entry: Entry | None = None


class Checkpoints:
    """Commits sets of finished files. For one thread."""

    def __init__(self, store: Store, orders: Orders, work: Path, facts: Facts) -> None:
        self._store = store
        self._orders = orders
        self._work = work
        self._facts = facts
        self._files: dict[str, _File] = {}
        self._sets: list[CheckpointSet] = []  # this attempt's own, as far as they are kept
        self._number = 0
        self._committed: tuple[Entry, ...] = ()
        key = partial(layout.checkpoint_file, orders.run_id)
        self._contents = Contents(store, key, alone=True, first=orders.attempt == 1)

    def begin_from(self, restored: CheckpointSet | None) -> None:
        """What was put back is in the store: it is not sent again as long as it does not change."""
        if restored is None:
            return
        self._committed = tuple(sorted(restored.entries, key=lambda entry: entry.path))
        for entry in restored.entries:
            if entry.kind is EntryKind.FILE:
                mark = mark_of((self._work / entry.path).stat())
                self._files[entry.path] = _File(mark, 0.0, mark, entry)

    def commit(self, *, trusted: bool = False) -> CheckpointSet | None:
        """The set just committed; None where nothing new is finished. `trusted` means that whoever wrote the files has
        ended by itself, so that all of them are finished.

        Raises StoreFailed, and may then be called again; AlreadyThere means that another attempt has taken over.
        """
        entries = self._finished(trusted=trusted)
        if entries == self._committed or not entries:
            return None
        if fenced(self._orders.attempt, read_fences(self._store, self._orders.run_id)):
            raise AlreadyThere("a later attempt has taken over")
        step, metrics = self._facts()
        made = CheckpointSet(self._orders.attempt, self._number + 1, datetime.now(UTC), entries, step, metrics)
        key = layout.checkpoint_set(self._orders.run_id, *made.position)
        self._store.put(key, dump(made), only_new=True)
        self._number += 1
        self._committed = entries
        self._retain(made)
        return made

    def _finished(self, *, trusted: bool) -> tuple[Entry, ...]:
        """Every finished file; of one that is being written again, its last finished content."""
        files, self._files = self._files, {}
        busy = set() if trusted else being_written(one.pid for one in belonging_to(self._orders.key, os.getpid()))
        entries: list[Entry] = []
        for top in self._orders.job.checkpoints:
            for name, found in walk(str(self._work / top), lambda _path, _error: None):
                path = f"{top}/{name}"
                entry = self._entry(
                    path, found, files.get(path), trusted or str(self._work / path) not in busy, trusted
                )
                if entry:
                    entries.append(entry)
        return tuple(sorted(entries, key=lambda entry: entry.path))

    def _entry(
        self, path: str, found: os.DirEntry[str] | None, known: _File | None, closed: bool, trusted: bool
    ) -> Entry | None:
        try:
            path.encode()
            if found is None:
                return Entry(path, EntryKind.FOLDER)
            status = found.stat(follow_symlinks=False)
            if stat.S_ISLNK(status.st_mode):
                return Entry(path, EntryKind.LINK, target=os.readlink(found.path))  # noqa: PTH115  # text, not a Path
            if stat.S_ISREG(status.st_mode):
                return self._file(path, found.path, status, known, closed, trusted)
        except (OSError, UnicodeEncodeError):
            pass
        return None

    def _file(
        self, path: str, place: str, status: os.stat_result, known: _File | None, closed: bool, trusted: bool
    ) -> Entry | None:
        mark, now = mark_of(status), time.monotonic()
        if known is None or known.mark != mark:
            known = _File(mark, now, *((known.shipped, known.entry) if known else ()))
        self._files[path] = known
        if known.shipped == mark or not closed or not (trusted or now - known.since >= QUIET_S):
            return known.entry
        try:
            sha256 = self._contents.ship(place, mark)
        except Changing:
            return known.entry
        known.shipped = mark
        executable = bool(status.st_mode & stat.S_IXUSR)
        known.entry = Entry(path, sha256=sha256, size_bytes=mark[0], executable=executable)
        return known.entry

    def _retain(self, newest: CheckpointSet) -> None:
        """Lets go of sets of this attempt that retention does not ask for, and of contents only they had."""
        rules = self._orders.job.retention
        self._sets.append(newest)
        kept = retained(self._sets, rules.keep, rules.best or "")
        for old in [one for one in self._sets if one.position not in kept]:
            self._store.delete(layout.checkpoint_set(self._orders.run_id, *old.position))
        self._sets = [one for one in self._sets if one.position in kept]
        self._contents.forget({entry.sha256 for one in self._sets for entry in one.entries}, 0.0)


class Keeper(Worker):
    """Commits as files become finished, at once where somebody is in a hurry. Training never waits for it."""

    def __init__(self, checkpoints: Checkpoints, trouble: Trouble, fenced_off: Callable[[], None]) -> None:
        super().__init__("checkpoints")
        self._checkpoints = checkpoints
        self._patience = Patience("checkpoints", trouble)
        self._fenced_off = fenced_off
        self.trusted = False  # whoever wrote has ended by itself
        self.last: CheckpointSet | None = None
        self.last_took_s = 0.0

    def work(self) -> None:
        while not self.ending.wait(EVERY_S):
            self._commit(trusted=False)
        while not self._commit(trusted=self.trusted):
            time.sleep(0.05)

    def _commit(self, *, trusted: bool) -> bool:
        if not self._patience.due:
            return False
        start = time.monotonic()
        try:
            made = self._checkpoints.commit(trusted=trusted)
        except AlreadyThere:
            self._fenced_off()
            return True
        except StokerError as error:
            self._patience.failed(error)
            return False
        self._patience.worked()
        if made:
            self.last, self.last_took_s = made, time.monotonic() - start
        return True
