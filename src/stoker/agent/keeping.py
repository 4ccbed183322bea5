"""The checkpoint folders of a run: what is finished in them is committed to the store as one set, or not at all."""

from __future__ import annotations

import errno
import io
import os
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from enum import Enum, auto
from functools import partial
from pathlib import Path

from stoker.agent.contents import Changing, Contents, open_still
from stoker.agent.openfiles import Identity, being_written, descendants
from stoker.agent.processes import belonging_to
from stoker.agent.restoring import folders, is_fenced
from stoker.agent.retaining import Retaining
from stoker.agent.watching import Found, Watch
from stoker.errors import AlreadyThere
from stoker.model import layout
from stoker.model.checkpoint import CheckpointSet
from stoker.model.orders import Orders
from stoker.model.snapshot import Entry
from stoker.model.wire import dump
from stoker.stores import Store
from stoker.stores.pacing import pacing
from stoker.stores.still import Mark

QUIET_S = 1.0  # files that nobody has open and that have not changed for this long belong together
HURRIED_QUIET_S = 0.25  # the same in a hurry
STARVED_S = 2.0  # where there has been no quiet for so long, the longest pauses there are have to do
LEAST_PAUSE_S = 0.1
PAUSE_SHARE = 0.6
PARTIAL_S = 10.0  # where there are none, from then on without what is fresh
LONG_WRITE_S = 2.0  # a file that takes as long as this to write is waited for
TICK_NS = 20_000_000  # two writes closer than this may leave the same time on a file
MOST_OPEN = 256  # files held open until they are shipped, so that a script may remove them meanwhile
_REPLACED = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO)  # by nothing, by a link, by a pipe

Facts = Callable[[], tuple[float | None, Mapping[str, float]]]  # the last step and values the script reported
Tell = Callable[[str, str], None]
_Content = tuple[Identity | None, int, int]  # which file, its size, and when it was last written


class Care(Enum):
    """How sure a commit has to be that what it finds belongs together."""

    PATIENT = auto()  # it waits for quiet
    HURRIED = auto()  # the node is about to go: the shortest quiet will do
    TRUSTING = auto()  # whoever wrote has ended by itself: everything is finished


class Checkpoints:
    """Commits the folders as they were at one moment. For one thread."""

    def __init__(
        self,
        store: Store,
        orders: Orders,
        work: Path,
        facts: Facts,
        tell: Tell,
        *,
        clock: Callable[[], float] = time.monotonic,
        open_files: Callable[[], set[Identity]] | None = None,
    ) -> None:
        """`clock` is a steady one; `open_files` are those that the run has open for writing."""
        self._clock = clock
        self._open_files = open_files or partial(_open_files, orders.key)
        self._store = store
        self._orders = orders
        self._facts = facts
        self._tell = tell
        self._told: set[str] = set()
        self._watch = Watch(work, folders(orders), self._unkept)
        self._done: dict[str, Mark | None] = {}  # as last committed
        self._noted: dict[str, Mark | None] = {}
        self._facts_then: tuple[float | None, Mapping[str, float]] = (None, {})  # when the newest change was seen
        self._restless_since = 0.0  # since when a commit has waited for a quiet moment; 0: it does not
        self.behind = False  # there is something that is not committed yet
        self.first: Callable[[], None] = lambda: None  # done before a set is made visible, unless there is a hurry
        self._hashes: dict[_Content, str] = {}
        self._last: CheckpointSet | None = None
        self._number = 0
        key = partial(layout.checkpoint_file, orders.run_id, node=orders.node)
        self._contents = Contents(store, key, alone=True, first=orders.attempt == 1)
        self._retaining = Retaining(store, orders, self._contents)

    @property
    def restless(self) -> bool:
        """A commit waits for a quiet moment: worth looking for more often."""
        return bool(self._restless_since)

    @property
    def fence_every_s(self) -> float:
        """How often it is worth asking whether another attempt has taken over."""
        return pacing(self._store).fence_s

    def begin_from(self, restored: CheckpointSet | None) -> None:
        """What was put back is in the store: it is not sent again as long as it does not change."""
        self._watch.look(self._clock())
        self._done = self._noted = self._watch.marks if restored else {}
        self._last = restored
        known = self._entries_of(restored)
        self._hashes = {_content(one): known[one.path].sha256 for one in self._watch.found if one.path in known}

    def commit(self, care: Care = Care.PATIENT) -> CheckpointSet | None:
        """The set just committed; None where nothing new is finished.

        Raises StoreFailed, and may then be called again; AlreadyThere means that another attempt has taken over.
        """
        now = self._clock()
        self._watch.look(now)
        marks = self._watch.marks
        if marks == self._done and not self._watch.some_open:
            self._rest(now)
            self.behind = False
            return None
        if marks != self._noted:
            self._noted, self._facts_then = marks, self._facts()
        left_out = self._left_out(care, now)
        entries = None if left_out is None else self._entries(left_out)
        if not entries:
            return None
        if self._last is None or entries != self._last.entries:
            self._rest(now)
            if care is not Care.HURRIED:
                self.first()
            return self._commit(entries, _without(marks, left_out or set()))
        self._done, self.behind = _without(marks, left_out or set()), False
        return None

    def tidy(self) -> None:
        """Lets go of sets that retention does not ask for. May fail, and be called again."""
        self._retaining.tidy()

    def check_fence(self) -> None:
        """Raises AlreadyThere where another attempt has taken over."""
        if is_fenced(self._store, self._orders):
            raise AlreadyThere("a later attempt has taken over")

    def _commit(self, entries: tuple[Entry, ...], done: dict[str, Mark | None]) -> CheckpointSet:
        self.check_fence()
        named = {one.path for one in entries}
        times = {one.path: one.mark[1] for one in self._watch.found if one.mark and one.path in named}
        self._number += 1  # a number is never tried twice: the store may have made the set and failed to say so
        now, step, metrics = datetime.now(UTC), *self._facts_then
        made = CheckpointSet(self._orders.attempt, self._number, now, entries, step, metrics, times).sealed
        self._retaining.doubt(made.position)
        try:
            key = layout.checkpoint_set(self._orders.run_id, *made.position, self._orders.node)
            self._store.put(key, dump(made), only_new=True)
        except AlreadyThere:
            self.check_fence()  # if nobody has taken over, the store made it at a first try that it did not tell of
        self._last, self._done, self.behind = made, done, False
        self._retaining.add(made)
        return made

    def _left_out(self, care: Care, now: float) -> set[str] | None:
        """Paths whose last finished content has to do; None: this is not the moment for a commit."""
        if care is Care.TRUSTING:
            return set()
        watch = self._watch
        busy = watch.note_open(self._open_files(), now)
        streams = watch.streams(now)
        for path in streams:
            self._unkept(path, "it is kept open for writing, and so never finished")
        self.behind = _without(self._noted, streams) != _without(self._done, streams)
        if not self.behind:
            self._rest(now)
            return None
        waited_s = now - (self._restless_since or now)
        if not busy - streams and now - watch.changed_at(streams) >= self._needed_s(care, waited_s):
            self._rest(now)
            return streams
        self._restless_since = self._restless_since or now
        if self._is_one_file(busy, streams, waited_s):
            return streams
        if waited_s >= PARTIAL_S and not watch.long_open(LONG_WRITE_S, now) - streams:
            return self._partial(busy, streams, now)
        return None

    def _rest(self, now: float) -> None:
        self._restless_since = 0.0
        self._watch.rest(now)

    def _needed_s(self, care: Care, waited_s: float) -> float:
        """How long everything has to have held still. A script that saves all the time pauses longer between two
        checkpoints than between the files of one."""
        enough_s = HURRIED_QUIET_S if care is Care.HURRIED else QUIET_S
        known = self._entries_of(self._last).keys()
        if waited_s < STARVED_S or not self._watch.in_step(known) or not self._watch.in_shape(known):
            return enough_s
        share = PAUSE_SHARE if waited_s < 2 * STARVED_S else PAUSE_SHARE / 2  # one pause may have been an exception
        return min(max(share * self._watch.longest_pause_s, LEAST_PAUSE_S), enough_s)

    def _is_one_file(self, busy: set[str], streams: set[str], waited_s: float) -> bool:
        """One file is written again and again, while nothing else changes: it is a checkpoint by itself."""
        found = {one.path: one for one in self._watch.found}
        restless = (self._watch.changes.keys() & found.keys()) - streams
        if waited_s < QUIET_S or len(restless) != 1 or restless & busy:
            return False
        path = next(iter(restless))
        return self._watch.changes[path] > 1 and _calm(found[path])

    def _partial(self, busy: set[str], streams: set[str], now: float) -> set[str] | None:
        """For folders that never hold still: new folders in them that are not finished are left out, where everything
        else is as it was. More cannot be told to belong together."""
        watch, paths = self._watch, {one.path for one in self._watch.found}
        last = self._entries_of(self._last).keys()
        fresh = {watch.child(path) for path in (watch.fresh(QUIET_S, now) | busy) - streams}
        known = {watch.child(path) for path in last}
        shrunk = {watch.child(path) for path in last - paths} & {watch.child(path) for path in paths}
        young = {path for path in paths if watch.child(path) in fresh}
        if not shrunk and not fresh & (known | paths) and young != paths:
            return streams | young
        if now - (self._restless_since or now) >= 2 * PARTIAL_S:
            self._unkept(min(fresh, default=""), "it changes all the time, and so do others")
        return None

    def _entries(self, left_out: set[str]) -> tuple[Entry, ...] | None:
        """The folders as they were when they were looked at; None where that is no longer to be had."""
        self._retaining.take_stock()
        found, last = self._watch.found, self._entries_of(self._last)
        entries = {one.path: last.get(one.path) if one.path in left_out else self._known(one) for one in found}
        try:
            entries |= self._ship([one for one in found if not entries[one.path] and one.path not in left_out])
        except Changing:
            return None
        current = {_content(one) for one in found}
        self._hashes = {content: sha256 for content, sha256 in self._hashes.items() if content in current}
        return tuple(entry for entry in entries.values() if entry)

    def _ship(self, some: list[Found]) -> dict[str, Entry | None]:
        """All are opened before the first is sent, so that those which the script removes meanwhile are still there."""
        entries: dict[str, Entry | None] = {}
        with ExitStack() as opened:
            files = {one.path: self._open(one, opened) for one in some[:MOST_OPEN]}
            for one in some:
                file = files[one.path] if one.path in files else self._open(one, opened)
                if file and one.mark:
                    with file:
                        sha256 = self._contents.ship_open(file, one.mark)
                    self._hashes[_content(one)] = sha256
                    entries[one.path] = replace(one.entry, sha256=sha256)
        return entries

    def _open(self, one: Found, opened: ExitStack) -> io.FileIO | None:
        """None where it may not be read."""
        try:
            return opened.enter_context(open_still(one.place))
        except OSError as error:
            if error.errno in _REPLACED:
                raise Changing from error
            if not isinstance(error, PermissionError):
                raise
            self._unkept(one.path, str(error.strerror))
            return None

    def _known(self, one: Found) -> Entry | None:
        """None for a file whose content is not known to be in the store."""
        if not one.is_file:
            return one.entry
        sha256 = self._hashes.get(_content(one), "")
        return replace(one.entry, sha256=sha256) if self._contents.has(sha256) else None

    def _entries_of(self, made: CheckpointSet | None) -> dict[str, Entry]:
        return {entry.path: entry for entry in made.entries} if made else {}

    def _unkept(self, path: str, why: str, kind: str = "checkpoint-left-out") -> None:
        if path not in self._told and len(self._told) < 20:
            self._told.add(path)
            self._tell(kind, f"`{path}` is in no checkpoint: {why}")


def _open_files(key: str) -> set[Identity]:
    """Whatever ranks leave behind is adopted by the agent, so that its descendants are all there are."""
    known = descendants(os.getpid())
    return being_written((one.pid for one in belonging_to(key, os.getpid())) if known is None else known)


def _content(one: Found) -> _Content:
    """Links to a file that come and go change its status, not this."""
    return one.identity, one.mark[0] if one.mark else 0, one.mark[1] if one.mark else 0


def _calm(one: Found) -> bool:
    return bool(one.mark) and time.time_ns() - (one.mark or (0, 0))[1] > TICK_NS


def _without(marks: dict[str, Mark | None], paths: set[str]) -> dict[str, Mark | None]:
    return {path: mark for path, mark in marks.items() if path not in paths} if paths else marks
