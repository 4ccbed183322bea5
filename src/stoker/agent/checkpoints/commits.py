"""The checkpoint folders of a run: complete files are committed to the store as one set, or not at all."""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import partial

from stoker.agent.checkpoints.contents import Changing, Contents, Pins, Sending
from stoker.agent.checkpoints.folders.choosing import Care, Choosing, Chosen
from stoker.agent.checkpoints.folders.copies import Clone, Clones, Copy, Databases
from stoker.agent.checkpoints.folders.counting import HeldState, SaveCounter
from stoker.agent.checkpoints.folders.files import OpenForWriting, Writers, descendants
from stoker.agent.checkpoints.folders.watching import Closer, FileWatch, FoundFile
from stoker.agent.checkpoints.sets import Retaining, is_fenced
from stoker.agent.machine.machine import NodeFolder
from stoker.agent.processes.family import belonging_to
from stoker.errors import AlreadyThere
from stoker.model.job.sections import CheckpointPaths
from stoker.model.orders import Orders
from stoker.model.snapshot import CheckpointSet, Entry, EntryKind, first_number
from stoker.model.workspace import layout
from stoker.stores import Store, pacing
from stoker.stores.transfer.verified import Mark

MOST_FACTS = 256
OPEN_TOLD_S = 0.5  # a file that is open this long before an eviction may not be complete in time
HELD_PATIENCE_S = 10.0  # how long saves of which no state can be held are left to the next one
TRIES = 3  # in a row, where files were removed or rewritten between a look and their upload
OPEN_AT_THE_END = "the script still had it open for writing when the machine was evicted; save earlier or smaller"

Facts = Callable[[], tuple[float | None, Mapping[str, float]]]  # the last step and values the script reported
Tell = Callable[[str, str], None]


class Checkpoints:
    """Commits the folders in their state of one moment. For one thread."""

    def __init__(
        self,
        store: Store,
        orders: Orders,
        folder: NodeFolder,
        facts: Facts,
        tell: Tell,
        *,
        clock: Callable[[], float] = time.monotonic,
        open_files: Callable[[], OpenForWriting] | None = None,
        first: Callable[[], None] = lambda: None,
    ) -> None:
        """`clock` is monotonic; `open_files` returns what the run has open for writing; `first` is called before a set
        becomes visible, except in a hurry."""
        self._clock = clock
        self._open_files = open_files or Writers(partial(_processes, orders.key))
        self._store = store
        self._orders = orders
        self._facts = facts
        self._tell = tell
        self._told: set[str] = set()
        self._watch = FileWatch(folder.work, CheckpointPaths(orders.job.checkpoints), self._unkept)
        self._choosing = Choosing(self._watch, self._unkept)
        self._databases = Databases(folder.copies, self._unkept, self._kept_again, clock)
        self._clones = Clones(folder.copies, self._unkept)
        self._done: dict[str, Mark | None] = {}  # of the last commit
        self._noted: dict[str, Mark | None] = {}
        # When changes were seen, and what the script had reported by then.
        self._facts_then: deque[tuple[float, tuple[float | None, Mapping[str, float]]]] = deque(maxlen=MOST_FACTS)
        self.behind = False  # something is not committed yet
        self._first = first
        self._last: CheckpointSet | None = None
        self._number = first_number(orders.incarnation)
        key = partial(layout.checkpoint_file, orders.run_id, node=orders.node)
        self._contents = Contents(store, key, alone=True, first=orders.begins)
        self._retaining = Retaining(store, orders, self._contents)
        self._sending = Sending(self._contents, self._unkept)
        self._pins = Pins()
        self._closer = Closer(self._hold_speaking, self._hold_all)
        self._opened: OpenForWriting | None = None  # files that were open right after a hurried look
        self._counter: SaveCounter | None = None  # of a gang, whose nodes commit the same saves
        self._held_at = 0.0  # when a state that it held was last committed, or first waited for
        self.due: Callable[[], None] = lambda: None  # called when there is something to commit at once
        self._work = folder.work

    @property
    def restless(self) -> bool:
        """A commit waits for a quiet moment: look more often."""
        return self._choosing.restless

    @property
    def fence_every_s(self) -> float:
        """How often to check whether another attempt has taken over."""
        return pacing(self._store).fence_s

    def begin_from(self, restored: CheckpointSet | None) -> None:
        """Restored files are in the store: they are not uploaded again until they change."""
        self._watch.look(self._clock())
        self._done = self._noted = self._watch.marks if restored else {}
        self._last = restored
        self._sending.learn(self._watch.found, self._entries_of(restored))
        if self._orders.nodes > 1:
            self._count_from(restored)

    def _count_from(self, restored: CheckpointSet | None) -> None:
        if self._counter:
            self._counter.finish()
        counter = SaveCounter(self._work, CheckpointPaths(self._orders.job.checkpoints))
        counts = restored.saves if restored else {}
        # Without the counts of what was restored, its own would mean something else than those of other nodes.
        self._counter = counter if (counts or not restored) and counter.begin(counts) else None
        counter.wake = self._call_due

    def _call_due(self) -> None:
        self.due()

    @property
    def last(self) -> CheckpointSet | None:
        """The newest that is safe: committed, or what was restored."""
        return self._last

    def commit(self, care: Care = Care.PATIENT) -> CheckpointSet | None:
        """The set just committed; None where no new file is complete.

        Raises StoreFailed, and may then be called again; AlreadyThere means that another attempt has taken over.
        """
        if care is Care.PATIENT and self._counter and self._counter.rapid:
            if held := self._counter.take():
                return self._commit_held(held)
            self._held_at = self._held_at or self._clock()
            if self._clock() - self._held_at < HELD_PATIENCE_S:
                return None
        if not self._looks_closer(care, self._clock()):
            self._pins.release()
        for _ in range(TRIES):
            now = self._look(care)
            chosen = self._choose(care, now)
            if not chosen:
                return None
            if entries := self._entries(chosen):
                return self._commit_new(chosen, entries, care, now)
        return None

    def _commit_new(self, chosen: Chosen, entries: tuple[Entry, ...], care: Care, now: float) -> CheckpointSet | None:
        if self._last is None or entries != self._last.entries:
            if care is not Care.HURRIED:
                self._first()
            before, made = self._done, self._commit(entries, chosen)
            self._choosing.committed(chosen, before, now)
            return made
        self._note_committed(self._usable(chosen))
        if chosen.whole:
            self._done, self.behind = self._marks_of(chosen), self._databases.behind
        return None

    def _commit_held(self, held: HeldState) -> CheckpointSet | None:
        """Other nodes commit the same save, whatever has become of the files by now."""
        self._held_at = self._clock()
        self._retaining.take_stock()
        entries = tuple(
            Entry(
                path, sha256=self._contents.ship_bytes(data), size_bytes=len(data), executable=path in held.executable
            )
            for path, data in sorted(held.contents.items())
        )
        self._first()
        times = {path: mark[1] for path, mark in held.marks.items()}
        saves = {path: count for path, count in held.counts.items() if count}
        made = self._put(tuple(entries), self._facts(), times, saves)
        self._done = dict(held.marks)
        return made

    def amounts(self) -> dict[str, int]:
        """The size of the newest set without what is also in the outputs, for a report. For any thread."""
        newest, outputs = self._last, f"{self._orders.job.outputs}/"
        files = [one for one in newest.entries if one.kind is EntryKind.FILE] if newest else []
        sizes = [one.size_bytes for one in files if not one.path.startswith(outputs)]
        return {"checkpoint_files": len(sizes), "checkpoint_bytes": sum(sizes)}

    def tidy(self) -> None:
        """Deletes sets that retention does not require. May fail, and be called again."""
        self._retaining.tidy()

    def check_fence(self) -> None:
        """Raises AlreadyThere where another attempt has taken over."""
        if is_fenced(self._store, self._orders):
            raise AlreadyThere("a later attempt has taken over")

    def _look(self, care: Care) -> float:
        """Looks at the folders, after copying the files that need a copy."""
        if care is Care.TRUSTING:
            self._databases.forget()
            self._clones.forget()
        else:
            self._databases.refresh(hurried=care is Care.HURRIED)
        self._watch.aside = self._databases.paths
        now = self._clock()
        self._opened = None
        self._watch.look(now, self._closer if self._looks_closer(care, now) else None)
        if self._watch.marks != self._noted:
            self._noted = self._watch.marks
            self._facts_then.append((now, self._facts()))
        return now

    def _looks_closer(self, care: Care, now: float) -> bool:
        """This costs a little more, and is worth it where there may be no other chance."""
        return care is Care.HURRIED or (care is Care.PATIENT and self._choosing.is_starved(now))

    def _hold_speaking(self, speaking: list[FoundFile]) -> None:
        self._pins.hold(speaking, self._sending.knows)
        self._opened = self._open_files()

    def _hold_all(self, found: list[FoundFile]) -> set[str]:
        self._pins.let_go_of_others(one for one in found if not self._sending.knows(one))
        return self._pins.hold(found, self._sending.knows)

    def _choose(self, care: Care, now: float) -> Chosen | None:
        marks, copied = self._watch.marks, bool(self._databases.pending())
        if care is Care.TRUSTING:
            self._choosing.rest(now)
            return Chosen(set(marks)) if marks != self._done else None
        if marks == self._done and not self._watch.some_open:
            self._choosing.rest(now)
            self.behind = self._databases.behind
            return Chosen(set(marks)) if copied else None
        busy = self._busy(now)
        marks, streams = self._watch.marks, self._watch.streams(now)
        staying = [one for one in self._watch.found if one.path in streams]
        self._clones.note(staying, self._watch, now, hurried=care is Care.HURRIED)
        copied = copied or bool(self._clones.pending())
        last = self._entries_of(self._last)
        if _without(marks, streams) == _without(self._done, streams):
            self.behind = self._databases.behind
            self._choosing.rest(now)
            return Chosen(set(marks) - streams, streams & last.keys()) if copied else None
        self.behind = True
        chosen = self._choosing.choose(care, busy, self._done, last, now)
        if care is Care.HURRIED:
            for path in self._watch.long_open(OPEN_TOLD_S, now) - streams:
                self._unkept(path, OPEN_AT_THE_END)
        return chosen or (self._choosing.hold(self._done, last) if copied else None)

    def _busy(self, now: float) -> set[str]:
        """Files open for writing, except for databases, which are copied."""
        opened = self._opened or self._open_files()
        busy = self._watch.note_open(opened.files, now, some_ended=opened.some_ended)
        if self._databases.find(self._watch.found, busy):
            self._watch.aside = self._databases.paths
            self._watch.look(now)
            busy = self._watch.note_open(opened.files, now)
        return busy

    def _commit(self, entries: tuple[Entry, ...], chosen: Chosen) -> CheckpointSet:
        times = self._times_of(chosen, {one.path for one in entries})
        marks = self._marks_of(chosen)
        saves = self._counter.counts_of(marks) if self._counter and not chosen.kept else {}
        made = self._put(entries, self._facts_of(chosen), times, saves)
        self._done = marks
        self._note_committed(self._usable(chosen))
        self.behind = self._databases.behind or not chosen.whole
        return made

    def _put(
        self,
        entries: tuple[Entry, ...],
        facts: tuple[float | None, Mapping[str, float]],
        times: Mapping[str, int],
        saves: Mapping[str, int],
    ) -> CheckpointSet:
        self.check_fence()
        self._number += 1  # a number is never reused: the store may have created the set before it reported a failure
        made, words = CheckpointSet(
            self._orders.attempt, self._number, datetime.now(UTC), entries, *facts, times, saves
        ).seal_and_dump()
        self._retaining.doubt(made.position)
        try:
            key = layout.checkpoint_set(self._orders.run_id, *made.position, self._orders.node)
            self._store.put(key, words, only_new=True)
        except AlreadyThere:
            self.check_fence()  # without another attempt, the store created it in a first try that it did not confirm
        self._last = made
        self._retaining.add(made)
        return made

    def _times_of(self, chosen: Chosen, named: set[str]) -> dict[str, int]:
        """When each file was last written; for unchanged files, the time of the last set. Readers expect 64 bits, so a
        time beyond that is omitted."""
        before = self._last.changed_ns if self._last else {}
        times = {path: before[path] for path in (*chosen.kept, *self._copies) if path in before}
        times |= {one.path: one.mark[1] for one in self._watch.found if one.mark and one.path in chosen.taken}
        times |= {path: self._copies[path].written_ns for path in self._usable(chosen)}
        return {path: changed for path, changed in times.items() if path in named and abs(changed) < 1 << 63}

    def _marks_of(self, chosen: Chosen) -> dict[str, Mark | None]:
        """The files of the set that are known to be unchanged in the folder."""
        kept = {path: mark for path, mark in self._done.items() if path in chosen.kept}
        return {**kept, **{one.path: one.mark for one in self._watch.found if one.path in chosen.taken}}

    def _facts_of(self, chosen: Chosen) -> tuple[float | None, Mapping[str, float]]:
        """What the script had reported when the newest of the chosen files was seen."""
        newest = max((self._watch.since(path) for path in chosen.taken), default=0.0)
        seen = [facts for at, facts in self._facts_then if at >= newest]
        return seen[0] if seen else self._facts()

    @property
    def _copies(self) -> Mapping[str, Copy | Clone]:
        """Of files that stay open."""
        return {**self._databases.copies, **self._clones.copies}

    def _usable(self, chosen: Chosen) -> set[str]:
        """Paths whose newest copy may be in the set: everything that it may refer to is in the set, too."""
        left = {one.path for one in self._watch.found if one.is_file} - chosen.taken - chosen.kept - self._copies.keys()
        oldest = min((self._watch.since(path) for path in left), default=math.inf)
        return {path for path, copy in self._copies.items() if copy.at and (chosen.whole or copy.at < oldest)}

    def _note_committed(self, paths: set[str]) -> None:
        self._databases.committed(paths & self._databases.copies.keys())
        self._clones.committed(paths & self._clones.copies.keys())

    def _entries(self, chosen: Chosen) -> tuple[Entry, ...] | None:
        """The folders in the state of the look; None where that is no longer available."""
        if not self._watch.has_held(chosen.taken):
            return None
        self._retaining.take_stock()
        last = self._entries_of(self._last)
        entries = {path: last[path] for path in (*chosen.kept, *self._copies) if path in last}
        try:
            entries |= self._sending.send([one for one in self._watch.found if one.path in chosen.taken], self._pins)
            for path in self._usable(chosen):
                entries[path] = self._sending.send_copy(path, self._copies[path].file)
        except Changing:
            return None
        self._sending.forget(self._watch.found)
        return tuple(entries[path] for path in sorted(entries))

    def _entries_of(self, made: CheckpointSet | None) -> dict[str, Entry]:
        return {entry.path: entry for entry in made.entries} if made else {}

    def _unkept(self, path: str, why: str) -> None:
        if path not in self._told and len(self._told) < 20:
            self._told.add(path)
            older = self._last is not None and any(one.path == path for one in self._last.entries)
            what = "is in the checkpoints in an older version" if older else "is in no checkpoint"
            self._tell("checkpoint-left-out", f"`{path}` {what}: {why}")

    def _kept_again(self, path: str) -> None:
        self._told.discard(path)
        self._tell("checkpoint-caught-up", f"`{path}` is in the checkpoints again")


def _processes(key: str) -> Iterable[int]:
    """The agent adopts orphaned processes of the ranks, so its descendants are all of them."""
    known = descendants(os.getpid())
    return (one.pid for one in belonging_to(key, os.getpid())) if known is None else known


def _without(marks: dict[str, Mark | None], paths: set[str]) -> dict[str, Mark | None]:
    return {path: mark for path, mark in marks.items() if path not in paths} if paths else marks
