"""The checkpoint folders of a run, watched: what is finished is committed to the store as one set, or not at all."""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
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
QUIET_S = 1.0  # files that nobody has open and that have not changed for this long belong together
STARVED_S = 5.0  # folders that are never quiet are committed at a moment when nobody has a file open

Facts = Callable[[], tuple[float | None, Mapping[str, float]]]  # the last step and values the script reported


@dataclass(frozen=True, slots=True)
class _Found:
    """One thing below a checkpoint folder at one look. Links and empty folders have no mark."""

    path: str
    place: str
    mark: Mark | None
    entry: Entry  # without its hash, for a file


class Checkpoints:
    """Commits sets of finished files. For one thread."""

    def __init__(self, store: Store, orders: Orders, work: Path, facts: Facts) -> None:
        self._store = store
        self._orders = orders
        self._work = work
        self._facts = facts
        self._seen: dict[str, Mark | None] = {}
        self._changed_at = 0.0
        self._pending_since = 0.0  # when the first change that is not committed yet was seen; 0: there is none
        self._shipped: dict[str, tuple[Mark, Entry]] = {}  # by path: the last finished content
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
        known = {entry.path: entry for entry in restored.entries}
        self._shipped = {one.path: (one.mark, known[one.path]) for one in self._look() if one.mark}

    def commit(self, *, trusted: bool = False, hurry: bool = False) -> CheckpointSet | None:
        """The set just committed; None where nothing new is finished. `trusted` means that whoever wrote the files has
        ended by itself, so that all of them are finished; `hurry` that there is no time to wait for quiet.

        Raises StoreFailed, and may then be called again; AlreadyThere means that another attempt has taken over.
        """
        found = self._look()
        starved = self._note_changes(found)
        if not (trusted or hurry or starved or time.monotonic() - self._changed_at >= QUIET_S):
            return None
        busy = set() if trusted else being_written(one.pid for one in belonging_to(self._orders.key, os.getpid()))
        entries = tuple(entry for one in found if (entry := self._entry(one, one.place in busy)))
        settled = trusted or hurry or starved or self._marks(self._look()) == self._seen
        if not settled or not entries or entries == self._committed:
            return None
        return self._commit(entries)

    def _commit(self, entries: tuple[Entry, ...]) -> CheckpointSet:
        if fenced(self._orders.attempt, read_fences(self._store, self._orders.run_id)):
            raise AlreadyThere("a later attempt has taken over")
        step, metrics = self._facts()
        made = CheckpointSet(self._orders.attempt, self._number + 1, datetime.now(UTC), entries, step, metrics)
        key = layout.checkpoint_set(self._orders.run_id, *made.position)
        self._store.put(key, dump(made), only_new=True)
        self._number += 1
        self._committed = entries
        self._pending_since = 0.0
        self._retain(made)
        return made

    def _note_changes(self, found: list[_Found]) -> bool:
        """True where changes have waited for quiet for too long."""
        marks, now = self._marks(found), time.monotonic()
        if marks != self._seen:
            self._seen, self._changed_at = marks, now
            self._pending_since = self._pending_since or now
        return bool(self._pending_since) and now - self._pending_since >= STARVED_S

    def _look(self) -> list[_Found]:
        found: list[_Found] = []
        for top in self._orders.job.checkpoints:
            for name, thing in walk(str(self._work / top), lambda _path, _error: None):
                with suppress(OSError, UnicodeEncodeError):
                    if seen := _see(f"{top}/{name}", str(self._work / top / name), thing):
                        found.append(seen)
        return sorted(found, key=lambda one: one.path)

    def _marks(self, found: list[_Found]) -> dict[str, Mark | None]:
        return {one.path: one.mark for one in found}

    def _entry(self, one: _Found, busy: bool) -> Entry | None:
        """Of a file that is being written, its last finished content; None where it never had one."""
        if one.mark is None:
            return one.entry
        mark, last = self._shipped.get(one.path, (None, None))
        if mark == one.mark or busy:
            return last
        try:
            sha256 = self._contents.ship(one.place, one.mark)
        except (Changing, FileNotFoundError):
            return last
        entry = replace(one.entry, sha256=sha256, size_bytes=one.mark[0])
        self._shipped[one.path] = one.mark, entry
        return entry

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

    def __init__(
        self,
        checkpoints: Checkpoints,
        trouble: Trouble,
        tell: Callable[[str, str], None],
        fenced_off: Callable[[], None],
    ) -> None:
        super().__init__("checkpoints")
        self._checkpoints = checkpoints
        self._tell = tell
        self._wake = threading.Event()
        self._hurried_at = 0.0
        self._patience = Patience("checkpoints", trouble)
        self._fenced_off = fenced_off
        self.trusted = False  # whoever wrote has ended by itself
        self.last: CheckpointSet | None = None
        self.last_took_s = 0.0

    def hurry(self) -> None:
        """Commits what is finished as soon as it can, and says how long that took."""
        self._hurried_at = time.monotonic()
        self._wake.set()

    def finish(self) -> None:
        self.ending.set()
        self._wake.set()
        super().finish()

    def work(self) -> None:
        while not self.ending.is_set():
            self._wake.wait(EVERY_S)
            self._wake.clear()
            self._commit(trusted=False, hurry=bool(self._hurried_at))
            self._report_hurry()
        while not self._commit(trusted=self.trusted):
            time.sleep(0.05)

    def _report_hurry(self) -> None:
        if self._hurried_at:
            seconds, self._hurried_at = time.monotonic() - self._hurried_at, 0.0
            newest = f"checkpoint {self.last.number} is safe" if self.last else "there is no finished file yet"
            self._tell("notice-committed", f"the last commit took {seconds:.2f} s: {newest}")

    def _commit(self, *, trusted: bool, hurry: bool = False) -> bool:
        if not self._patience.due:
            return False
        start = time.monotonic()
        try:
            made = self._checkpoints.commit(trusted=trusted, hurry=hurry)
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


def _see(path: str, place: str, thing: os.DirEntry[str] | None) -> _Found | None:
    path.encode()
    if thing is None:
        return _Found(path, place, None, Entry(path, EntryKind.FOLDER))
    status = thing.stat(follow_symlinks=False)
    if stat.S_ISLNK(status.st_mode):
        target = os.readlink(place)  # noqa: PTH115  # text, not a Path
        return _Found(path, place, None, Entry(path, EntryKind.LINK, target=target))
    if not stat.S_ISREG(status.st_mode):
        return None
    executable = bool(status.st_mode & stat.S_IXUSR)
    return _Found(path, place, mark_of(status), Entry(path, executable=executable))
