"""The files in the checkpoint folders, look by look: how long each is unchanged, and which are being written."""

from __future__ import annotations

import math
import os
import stat
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from stoker.agent.checkpoints.folders.files import Identity, Rotation, numbers_in, present, walk
from stoker.model.job.sections import BESIDE, CheckpointPaths
from stoker.model.snapshot import Entry, EntryKind
from stoker.stores.transfer.verified import Mark, mark_of

FINE_NS = 1000  # a modification time that is not a multiple of this was set by the system
STREAM_S = 5.0  # a file that is open for writing this long and hardly grows is a log, not a checkpoint
STREAM_BYTES_PER_S = 1e6
DOUBTED_S = 0.25  # how long to distrust a file whose writer has exited: killed, it may have left half of it
LONG_WRITE_S = 2.0  # a file that takes this long to write is waited for
REMEMBERED_S = 60.0  # how long to remember that a file took long, or was removed
# How `stoker.checkpoint` names what is not a checkpoint yet, or no longer.
UNFINISHED = (".writing-", ".removing-", "quarantine/")

Status = Callable[[], os.stat_result]
Unkept = Callable[[str, str], None]  # the path of something that cannot be saved, and why


@dataclass(frozen=True, slots=True)
class FoundFile:
    """One file, link or folder below a checkpoint folder at one look. Empty folders have no mark."""

    path: str
    place: str
    mark: Mark | None  # of its content: a change of links or names does not change it
    identity: Identity | None
    entry: Entry  # without its hash, for a file
    changed_ns: int = 0  # when its content, its name or its links last changed

    @property
    def is_file(self) -> bool:
        return self.entry.kind is EntryKind.FILE


@dataclass(frozen=True, slots=True)
class Closer:
    """Called as soon as everything was seen, so that its state is that of the look, however long the rest takes."""

    first: Callable[[list[FoundFile]], None]  # gets files that may be rewritten in place, and pointers
    then: Callable[[list[FoundFile]], set[str]]  # gets everything; returns the paths that were gone by then


class FileWatch:
    """For one thread. `now` is a monotonic clock's, in seconds."""

    def __init__(self, work: Path, paths: CheckpointPaths, unkept: Unkept) -> None:
        self._work = work
        self._paths = paths
        self._unkept = unkept
        self._marks_by_file: dict[tuple[Identity, bool], Mark] = {}  # with whether it is executable
        self._since: dict[str, tuple[Mark | None, float]] = {}  # by path: its mark, and when that was first seen
        self._changed_at = 0.0  # when something was last removed
        self._rested_at = 0.0
        self._looked_at: float | None = None
        self._wall_s = 0.0  # at that time, by the clock of file timestamps
        self._open: dict[str, tuple[float, int]] = {}  # by path: since when it is open for writing, and its size then
        self._doubted: dict[str, float] = {}  # by path: when a process exited that may have been writing it
        self._emptied: set[str] = set()  # files that may have been opened at this moment
        self._long_open_at: dict[str, float] = {}  # by path: when it was last seen open for long
        self._lost: dict[str, float] = {}  # by folder: when something in it was removed
        self.aside: set[str] = set()  # paths that are handled elsewhere
        self.found: list[FoundFile] = []
        self._fresh: list[FoundFile] = []  # new or changed since the look before
        self._moved: set[str] | None = None  # what changed during the look; None: it was not a close look
        self._rotation = Rotation()
        # By path: when it last changed after it was closed, and the time before that.
        self.rewrites: dict[str, tuple[float, float]] = {}
        self.changes: dict[str, int] = {}  # by path: how often it was seen written since `rest`
        self.longest_pause_s = 0.0  # between two changes since `rest`

    def look(self, now: float, closer: Closer | None = None) -> None:
        self._wall_s = time.time()
        found, self._moved = self._seen(), None
        if closer:
            found, self._moved = self._look_closer(found, closer)
        self._take_in(found, now)

    def _look_closer(self, found: list[FoundFile], closer: Closer) -> tuple[list[FoundFile], set[str]]:
        """What existed, and what of it changed meanwhile. A file that may be rewritten counts if it was the same before
        and after everything else was seen, and the files that it refers to could be opened: the script may then move
        on."""
        speaking = [one for one in found if one.mark and _may_be_rewritten(one)]
        fresh = [one for one in found if one.mark and self._is_fresh(one) and not _may_be_rewritten(one)]
        closer.first(speaking)
        moved = {one.path for one in speaking if _has_changed(one)}
        gone = closer.then(found)
        moved |= {one.path for one in fresh if _has_changed(one, removed=False)}  # those are open, and were complete
        moved |= {one.path for one in speaking if _has_changed(one)} if gone else set()
        return [one for one in found if one.path not in gone], moved - gone

    def _seen(self) -> list[FoundFile]:
        found, work = [], str(self._work)  # creating a Path for each file would take longer than looking at it
        before = {one.path: one for one in self.found}
        for path, status in self._everything():
            if path in self.aside:
                continue
            try:
                if seen := _see(path, f"{work}/{path}", status, before.get(path)):
                    found.append(seen)
            except FileNotFoundError:
                pass
            except UnicodeEncodeError:
                self._unkept(path.encode(errors="replace").decode(), "its name is not UTF-8")
            except OSError as error:
                self._unkept(path, str(error.strerror))
        return found

    def _take_in(self, found: list[FoundFile], now: float) -> None:
        found.sort(key=lambda one: one.path)
        found, fresh = self._with_marks_of_content(found), []
        before, self._since, last = self._since, {}, self.changed_at()
        for one in found:
            mark, since = before.get(one.path, (None, now))
            same = one.path in before and mark == one.mark
            if not same:
                fresh.append(one)
            self._since[one.path] = one.mark, since if same else self._written_at(one, now)
            if same or one.path in self._open:  # a file that is still being written is not written again
                continue
            self.changes[one.path] = self.changes.get(one.path, 0) + 1
            if one.path in before:
                latest = self.rewrites.get(one.path, (-math.inf, -math.inf))[0]
                self.rewrites[one.path] = self._since[one.path][1], latest
        gone = before.keys() - self._since.keys()
        if gone:
            self._changed_at = max([self._changed_at, *self._removed_at(gone - self.aside, now)])
            self._lost |= {path.rpartition("/")[0]: now for path in gone}
            self._lost = {folder: at for folder, at in self._lost.items() if now - at < REMEMBERED_S}
            self.rewrites = {path: times for path, times in self.rewrites.items() if path not in gone}
        self._rested_at = now if self._looked_at is None else self._rested_at
        self.found, self._fresh, self._looked_at = found, fresh, now
        self._rotation.note([one.path for one in fresh if one.is_file and one.path not in before], gone)
        if self.changes and self.changed_at() > last:
            self.longest_pause_s = max(self.longest_pause_s, self.changed_at() - max(last, self._rested_at))

    def _everything(self) -> Iterator[tuple[str, Status | None]]:
        """By path: how to stat it; None stands for an empty folder."""
        for root in present(self._work, self._paths):
            place = str(self._work / root)
            if not os.path.isdir(place) or os.path.islink(place):  # noqa: PTH112, PTH114  # every quarter of a second
                yield root, partial(os.lstat, place)
                continue
            for name, thing in walk(place, lambda path, error: self._unkept(path, str(error.strerror))):
                if not name.startswith(UNFINISHED):
                    yield f"{root}/{name}", partial(thing.stat, follow_symlinks=False) if thing else None

    @property
    def marks(self) -> dict[str, Mark | None]:
        return {one.path: one.mark for one in self.found}

    @property
    def some_open(self) -> bool:
        """A file was open for writing at the last look."""
        return bool(self._open)

    def note_open(self, busy: set[Identity], now: float, *, some_ended: bool = False) -> set[str]:
        """Records what is open for writing, and returns the paths. A file that changed since the look was being written
        then, even if it is closed now. `some_ended`: processes that may have written have exited."""
        held = {one.path: one for one in self.found if one.is_file and one.identity in busy}
        opened = held | {one.path: one for one in self._fresh if one.is_file and self._has_moved(one)}
        self._doubted = {path: at for path, at in self._doubted.items() if now - at < DOUBTED_S}
        if some_ended:
            doubted = {one.path for one in self._fresh} | self._open.keys()
            self._doubted |= dict.fromkeys(doubted - opened.keys(), now)
        # A file written only during the look is rewritten often, which is different from being kept open.
        since = {path: self._open.get(path, (now, _size(one))) for path, one in held.items()}
        self._open = {path: since.get(path, (now, _size(one))) for path, one in opened.items()}
        recent = {path: at for path, at in self._long_open_at.items() if now - at < REMEMBERED_S}
        self._long_open_at = {**recent, **dict.fromkeys(self.long_open(LONG_WRITE_S, now), now)}
        # Opening a file for writing truncates it before the system shows it as open.
        empty = (one.path for one in self.found if one.is_file and not _size(one))
        self._emptied = {path for path in empty if now - self.since(path) < DOUBTED_S}
        return opened.keys() | self._doubted.keys() | self._emptied

    def streams(self, now: float) -> set[str]:
        """Files that a process keeps open and writes little to: a commit does not wait for these."""
        slow = set()
        for one in self.found:
            since, size = self._open.get(one.path, (now, 0))
            if now - since >= STREAM_S and abs(_size(one) - size) < STREAM_BYTES_PER_S * (now - since):
                slow.add(one.path)
        return slow

    def settled(self, path: str, seconds: float, now: float) -> bool:
        """It is closed, and unchanged for this long."""
        doubted = path in self._doubted or path in self._emptied
        return path not in self._open and not doubted and now - self._since[path][1] >= seconds

    def since(self, path: str) -> float:
        """When it was last written, as far as looks can tell."""
        return self._since[path][1]

    def is_faster(self, path: str, since: float) -> bool:
        """It was rewritten twice since then, so a file that was not does not alternate with it."""
        return self.rewrites.get(path, (-math.inf, -math.inf))[1] > since

    def is_open(self, path: str) -> bool:
        return path in self._open

    def changed_at(self, without: Collection[str] = ()) -> float:
        """When a change was last seen, except for these paths."""
        times = (since for path, (_, since) in self._since.items() if path not in without)
        return max(self._changed_at, max(times, default=0.0))

    def rest(self, now: float) -> None:
        """Everything is committed: changes from here on belong together."""
        self.changes, self.longest_pause_s, self._rested_at = {}, 0.0, now

    def in_step(self, rewritten: Collection[str]) -> bool:
        """Whether these were written equally often, as far as looks can tell: no round of them is half done."""
        known = {path for path in self.changes.keys() & rewritten if not path.endswith(BESIDE)}
        return len({self.changes[one.path] for one in self.found if one.path in known}) <= 1

    def in_shape(self, known: Collection[str]) -> bool:
        """Whether every folder directly in a checkpoint folder has the files that all known ones had: one that has not
        is half written, or half removed."""
        before, now = self._shapes(known), self._shapes([one.path for one in self.found if one.is_file])
        common = set.intersection(*before.values()) if before else set()
        return all(common <= names for names in now.values())

    def _shapes(self, paths: Iterable[str]) -> dict[str, set[str]]:
        """The contents of each of those folders, by relative name."""
        shapes: dict[str, set[str]] = {}
        for path in paths:
            child = self.child(path)
            if child != path:
                shapes.setdefault(child, set()).add(path[len(child) :])
        return shapes

    def long_open(self, seconds: float, now: float) -> set[str]:
        """Files that have been open for writing for this long."""
        return {path for path, (since, _) in self._open.items() if now - since >= seconds}

    def was_long_open(self, folder: str, within_s: float, now: float) -> bool:
        """Whether something large was written below a folder within this time."""
        return any(now - at < within_s and path.startswith(f"{folder}/") for path, at in self._long_open_at.items())

    def lost_something(self, folder: str, within_s: float, now: float) -> bool:
        """Whether something below a folder was removed within this time."""
        return any(now - at < within_s and f"{one}/".startswith(f"{folder}/") for one, at in self._lost.items())

    def has_held(self, paths: Collection[str]) -> bool:
        """Whether the rewritable ones among these are unchanged since the look. If they were so before the look began,
        everything that they refer to existed during the look, and was seen."""
        some = (one for one in self.found if one.path in paths and one.mark)
        return not any(self._has_moved(one) for one in some if _may_be_rewritten(one))

    def is_rotated(self, path: str) -> bool:
        """Whether files like this one come and go next to it: a folder of them is not one checkpoint."""
        return self._rotation.has(path)

    def child(self, path: str) -> str:
        """The file or folder directly in a checkpoint folder that `path` belongs to."""
        top = self.top(path)
        begin = f"{top}/" if top else ""
        return f"{begin}{path[len(begin) :].partition('/')[0]}"

    def top(self, path: str) -> str:
        """Its checkpoint folder."""
        return self._paths.top(path)

    def _is_fresh(self, one: FoundFile) -> bool:
        before = self._since.get(one.path)
        return before is None or before[0] != one.mark

    def _has_moved(self, one: FoundFile) -> bool:
        return _has_changed(one) if self._moved is None else one.path in self._moved

    def _with_marks_of_content(self, found: list[FoundFile]) -> list[FoundFile]:
        """A new hard link, name or permission changes the status time of a file, but not its content: while its size
        and a system-set modification time are the same, it keeps its first mark."""
        before, self._marks_by_file = self._marks_by_file, {}
        same = []
        for one in found:
            if one.mark and one.identity:
                file = one.identity, one.entry.executable
                known = self._marks_by_file.get(file) or before.get(file, one.mark)
                mark = known if _same_content(known, one.mark) else one.mark
                self._marks_by_file[file] = mark
                one = one if mark == one.mark else replace(one, mark=mark)
            same.append(one)
        return same

    def _written_at(self, one: FoundFile, now: float) -> float:
        """By the time on the file, which no script can set, if it lies between this look and the one before: so a pause
        between two writes is noticed although no look fell into it."""
        return self._at(one.changed_ns, now) if one.mark else now

    def _removed_at(self, gone: Collection[str], now: float) -> list[float]:
        """The same, by the times of their folders."""
        return [self._folder_changed_at(folder, now) for folder in {path.rpartition("/")[0] for path in gone}]

    def _folder_changed_at(self, folder: str, now: float) -> float:
        try:
            return self._at(os.lstat(self._work / folder).st_ctime_ns, now)
        except OSError:  # it was removed, too
            return now

    def _at(self, changed_ns: int, now: float) -> float:
        age_s = self._wall_s - changed_ns / 1e9  # at the start of the look: what was written during it has no age
        return min(max(now - age_s, self._looked_at if self._looked_at is not None else now), now)


def _may_be_rewritten(one: FoundFile) -> bool:
    return not one.is_file or not numbers_in(one.path)


def _has_changed(one: FoundFile, *, removed: bool = True) -> bool:
    """Since the look. `removed`: whether a removal counts as a change."""
    try:
        status = os.lstat(one.place)
    except FileNotFoundError:
        return removed
    except OSError:
        return True
    return one.mark is None or (status.st_size, status.st_mtime_ns, status.st_ino) != (*one.mark[:2], one.mark[3])


def _same_content(known: Mark, seen: Mark) -> bool:
    """A script may set the modification time, with low resolution; then every change counts."""
    same = (known[0], known[1], known[3]) == (seen[0], seen[1], seen[3])
    return known == seen or (same and seen[1] % FINE_NS != 0)


def _size(one: FoundFile) -> int:
    return one.mark[0] if one.mark else 0


def _see(path: str, place: str, look: Status | None, before: FoundFile | None) -> FoundFile | None:
    """`before` is the entry of the last look: most are unchanged, and need not be created again."""
    if look is None:
        path.encode()
        return FoundFile(path, place, None, None, Entry(path, EntryKind.FOLDER))
    status = look()
    mark, identity = mark_of(status), (status.st_dev, status.st_ino)
    executable = bool(status.st_mode & stat.S_IXUSR)
    if before and (before.mark, before.identity, before.entry.executable) == (mark, identity, executable):
        return before
    path.encode()
    if stat.S_ISLNK(status.st_mode):
        target = os.readlink(place)  # noqa: PTH115  # text, not a Path
        target.encode()
        return FoundFile(path, place, mark, identity, Entry(path, EntryKind.LINK, target=target), status.st_ctime_ns)
    if not stat.S_ISREG(status.st_mode):
        return None
    entry = Entry(path, size_bytes=status.st_size, executable=executable)
    return FoundFile(path, place, mark, identity, entry, status.st_ctime_ns)
