"""When to commit checkpoint folders, and which of their files: all in a quiet moment, or a part."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from stoker.agent.checkpoints.contents import open_still
from stoker.agent.checkpoints.folders.files import folders_of, kind_of, numbers_in
from stoker.agent.checkpoints.folders.growing import PARTIAL_S, QUIET_S, Growing, QuietTimes
from stoker.agent.checkpoints.folders.watching import FileWatch, FoundFile, Unkept
from stoker.model.job.sections import BESIDE
from stoker.model.snapshot import EntryKind
from stoker.stores.transfer.verified import Mark

HURRIED_QUIET_S = 0.25  # the same in a hurry
HURRIED_STARVED_S = 0.75
HURRIED_SLOW_S = 3.0  # how long to wait for a pointer on such a node
SLOW_S = 0.5  # between two looks in a hurry: they should be a tenth of that apart
HURRIED_TOLD_S = 1.0
TAKEN_S = 0.01  # a file written this shortly before a look may refer to files that the look has missed
STARVED_S = 2.0  # after so long without a quiet moment, the longest pause seen must be enough
LEAST_PAUSE_S = 0.1
PAUSE_SHARE = 0.6
HELD_S = 6.0  # how long to look for pauses before a set grows without rewritten files: scripts may start with those
GROW_EVERY_S = 2.0  # how often a set grows while it waits for a quiet moment
GROW_HURRIED_S = 0.2
TICK_NS = 20_000_000  # two writes closer than this may leave the same time on a file
JOURNALS = ("-journal", "-wal", "-shm")  # suffixes that SQLite adds to the name of a database


class Care(Enum):
    """How certain a commit must be that its files belong together."""

    PATIENT = auto()  # wait for a quiet moment
    HURRIED = auto()  # the node is about to be evicted: the shortest quiet moment is enough
    TRUSTING = auto()  # the writer has exited by itself: every file is complete


@dataclass(frozen=True, slots=True)
class Chosen:
    taken: set[str]  # in their current version
    kept: set[str] = field(default_factory=set)  # in the version of the last set
    whole: bool = True  # no complete file is missing


class Choosing:
    """For one thread. `now` is a monotonic clock's, in seconds."""

    def __init__(self, watch: FileWatch, unkept: Unkept) -> None:
        self._watch = watch
        self._unkept = unkept
        self._restless_since = 0.0  # since when a commit waits for a quiet moment; 0: it does not
        self._hurried_since = 0.0
        self._looked_at = 0.0  # in a hurry
        self._slow = False  # looks take too long to notice a short pause
        self._renewed_at = 0.0
        self._grow_due = 0.0
        self._introduced: dict[str, int] = {}  # by path: the commit in which the version of the last set appeared
        self._commits = 0

    @property
    def restless(self) -> bool:
        return bool(self._restless_since)

    def is_starved(self, now: float) -> bool:
        """A commit has waited long for a quiet moment."""
        return bool(self._restless_since) and now - self._restless_since >= STARVED_S

    def rest(self, now: float) -> None:
        self._restless_since = 0.0
        self._watch.rest(now)

    def committed(self, chosen: Chosen, done: Mapping[str, Mark | None], now: float) -> None:
        """`chosen` was committed; `done` are the marks of the set before."""
        self._commits += 1
        marks = self._watch.marks
        same = {path for path in chosen.taken if path in done and done[path] == marks[path]} | chosen.kept
        before = {path: self._introduced.get(path, 0) for path in same}
        self._introduced = {**dict.fromkeys(chosen.taken, self._commits), **before}
        if chosen.whole:
            self.rest(now)
        self._grow_due = now + GROW_EVERY_S

    def choose(
        self, care: Care, busy: set[str], done: Mapping[str, Mark | None], last: Collection[str], now: float
    ) -> Chosen | None:
        """None: do not commit now. `done` are the marks of the last set, `last` all its paths, and `busy` the files
        that are open for writing."""
        self._hurried_since = (self._hurried_since or now) if care is Care.HURRIED else 0.0
        hurried_before, self._looked_at = self._looked_at, now if care is Care.HURRIED else 0.0
        self._slow = bool(hurried_before) and now - hurried_before >= SLOW_S
        watch, streams = self._watch, self._watch.streams(now)
        everything = Chosen({one.path for one in watch.found} - streams, streams & set(last))
        waited_s = now - (self._restless_since or now)
        quiet_s = self._needed_s(care, waited_s, done, last)
        if not busy - streams and now - watch.changed_at(streams) >= quiet_s:
            return everything
        self._restless_since = self._restless_since or now
        if self._is_one_file(busy, streams, waited_s):
            return everything
        if care is Care.PATIENT and (waited_s < STARVED_S or now < self._grow_due):
            return None
        return self._grow(care, streams, done, last, now)

    def hold(self, done: Mapping[str, Mark | None], last: Collection[str]) -> Chosen:
        """Everything in the version of the last set."""
        same = {path for path, mark in self._watch.marks.items() if path in done and done[path] == mark}
        return Chosen(same, set(last) - same, whole=False)

    def _grow(
        self, care: Care, streams: set[str], done: Mapping[str, Mark | None], last: Collection[str], now: float
    ) -> Chosen | None:
        hurried = care is Care.HURRIED
        skip = streams | _beside_journals(self._watch.found)
        known = {path: done.get(path) for path in last if path not in skip and path not in self._watch.aside}
        found = Growing(self._watch, known, self._introduced, skip, now)
        pace = QuietTimes(QUIET_S, QUIET_S, QUIET_S)
        if hurried:
            pace = QuietTimes(0.0, HURRIED_QUIET_S, self._alone_s(skip, now), hurried=True)
        elif now - self._restless_since >= HELD_S:
            pace = QuietTimes(QUIET_S, QUIET_S, self._alone_s(skip, now))
        growth = found.growth(pace)
        if growth and growth.renewed:
            self._renewed_at = now
        self._tell_of_restless(found.rewritten, now, hurried=hurried)
        if growth is None:
            return None
        if growth.held and not hurried and now - self._restless_since < HELD_S:
            return None
        if now < self._pointer_due(hurried=hurried) and self._lacks_a_pointer(
            growth.taken, growth.taken | growth.kept | set(last) | skip
        ):
            return None
        if hurried and not growth.renewed and now < self._grow_due - GROW_EVERY_S + GROW_HURRIED_S:
            return None
        return Chosen(growth.taken, growth.kept | (skip & set(last)), whole=False)

    def _pointer_due(self, *, hurried: bool) -> float:
        """Until when to wait for a pointer: a set without one is better than none."""
        if not hurried:
            return self._restless_since + 2 * HELD_S
        return self._hurried_since + (HURRIED_SLOW_S if self._slow else HURRIED_TOLD_S)

    def _lacks_a_pointer(self, taken: Collection[str], known: Collection[str]) -> bool:
        """A script that finds checkpoints without their pointer ignores them, or fails."""
        left = (one for one in self._watch.found if one.path not in known and not self._is_numbered(one.path))
        return any(speaks_of(one, taken) for one in left)

    def _is_numbered(self, path: str) -> bool:
        """By its own name, or that of a folder: then a pointer may refer to it."""
        top = len(self._watch.top(path))
        return any(numbers_in(one) for one in (path, *folders_of(path)) if len(one) > top)

    def _alone_s(self, skip: Collection[str], now: float) -> float:
        """A file that is rewritten alone is a checkpoint by itself, or points to one. It may alternate with new files:
        better to take it after all of those, as long as waiting is possible."""
        pause_s = min(max(PAUSE_SHARE * self._watch.longest_pause_s, TAKEN_S), HURRIED_QUIET_S)
        starved = self._slow or now - (self._hurried_since or now) >= HURRIED_STARVED_S
        return TAKEN_S if starved or now - self._watch.changed_at(skip) >= pause_s else HURRIED_QUIET_S

    def _tell_of_restless(self, rewritten: Collection[str], now: float, *, hurried: bool) -> None:
        """After the time in which every existing pause would have been noticed."""
        since, after_s = (self._hurried_since, HURRIED_TOLD_S) if hurried else (self._restless_since, PARTIAL_S)
        if now - max(since or now, self._renewed_at) < after_s:
            return
        restless = sorted(path for path in rewritten if not self._watch.settled(path, QUIET_S, now))
        if restless:
            others = f", and so {'is' if len(restless) == 2 else 'are'} {_listed(restless[1:])}" if restless[1:] else ""
            self._unkept(
                restless[0],
                f"it is rewritten all the time{others}; without a pause it is unknown which versions belong together; "
                f"pause for {QUIET_S:g} s between two saves, or save under a new name each time",
            )

    def _needed_s(self, care: Care, waited_s: float, done: Mapping[str, Mark | None], last: Collection[str]) -> float:
        """How long all files must have been unchanged. A script that saves all the time pauses longer between two
        checkpoints than between the files of one."""
        enough_s = HURRIED_QUIET_S if care is Care.HURRIED else QUIET_S
        marks = self._watch.marks
        rewritten = {path for path in last if path in marks and (path not in done or done[path] != marks[path])}
        starved_s = HURRIED_STARVED_S if care is Care.HURRIED else STARVED_S
        if waited_s < starved_s or not self._watch.in_step(rewritten) or not self._watch.in_shape(last):
            return enough_s
        share = PAUSE_SHARE if waited_s < 2 * starved_s else PAUSE_SHARE / 2  # one pause may have been an exception
        return min(max(share * self._watch.longest_pause_s, LEAST_PAUSE_S), enough_s)

    def _is_one_file(self, busy: set[str], streams: set[str], waited_s: float) -> bool:
        """One file is written again and again while nothing else changes: it is a checkpoint by itself."""
        found = {one.path: one for one in self._watch.found if one.path not in streams}
        if waited_s < QUIET_S or busy - streams or not found:
            return False
        beside = {path for path in found if path.endswith(BESIDE)}  # each belongs to one other file
        newest = max(found.keys() - beside or found, key=self._watch.since)
        others = self._watch.changed_at({*streams, *beside, newest})
        return self._watch.is_faster(newest, others) and _calm(found[newest])


def _beside_journals(found: list[FoundFile]) -> set[str]:
    """A database and its journals are committed together, in a quiet moment, or not at all."""
    paths = {one.path for one in found}
    pairs = [(path.rpartition("-")[0], path) for path in paths if path.endswith(JOURNALS)]
    return {path for pair in pairs if pair[0] in paths for path in pair}


def _listed(paths: list[str]) -> str:
    return f"`{paths[0]}`" if len(paths) == 1 else f"{len(paths)} others"


def _calm(one: FoundFile) -> bool:
    return bool(one.mark) and time.time_ns() - (one.mark or (0, 0))[1] > TICK_NS


# Pointers: files that name the current checkpoint, such as `latest`, a link, a tracker. Scripts may need them.

MOST_BYTES = 4096
_LETTER = re.compile(r"[A-Za-z]")
_WORDS = re.compile(r"[^\s\"'`,:;=/\\{}\[\]]+")


def speaks_of(one: FoundFile, paths: Iterable[str]) -> bool:
    """Whether it names a file or folder like one of these, with any number, or contains nothing but a number."""
    words = _WORDS.findall(_text(one))
    if not words:  # most files contain none, and there may be thousands of files and paths
        return False
    names = {path.rpartition("/")[2] for file in paths for path in (file, *folders_of(file)[:-1])}
    if len(words) == 1 and words[0].isdecimal():
        return any(numbers_in(name) for name in names)
    kinds = {kind_of(name) for name in names}
    return any(kind_of(word) in kinds for word in words if _LETTER.search(word))


def _text(one: FoundFile) -> str:
    if one.entry.kind is EntryKind.LINK:
        return one.entry.target
    if not one.is_file or one.entry.size_bytes > MOST_BYTES:
        return ""
    try:
        with open_still(one.place) as file:  # it may be a pipe by now
            return file.read(MOST_BYTES).decode(errors="replace")
    except OSError:
        return ""
