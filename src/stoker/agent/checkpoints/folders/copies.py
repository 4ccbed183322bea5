"""SQLite databases in checkpoint folders: they stay open, so their consistent state is copied by SQLite itself."""

from __future__ import annotations

import errno
import fcntl
import os
import sys
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from stoker.agent.checkpoints.contents import open_still
from stoker.agent.checkpoints.folders.choosing import JOURNALS, TICK_NS
from stoker.agent.checkpoints.folders.growing import QUIET_S
from stoker.agent.checkpoints.folders.watching import FileWatch, FoundFile, Unkept
from stoker.stores.transfer.verified import Mark, mark_of

HEADER = b"SQLite format 3\0"
LEAST_EVERY_S = 1.0  # between two copies of the same database
SHARE = 20  # copying takes at most 1/20 of the time: writers may have to wait meanwhile
PENDING_S = 10.0  # how long a copy waits until the files that its rows may refer to are complete
PENDING_HURRIED_S = 0.5
LOCKED_S = 0.5  # how long a copy waits for a lock
LOCKED_HURRIED_S = 0.1
TOLD_AFTER_S = 2.0  # a transaction that holds the lock for longer than this is long
_BUSY = (5, 6)  # SQLITE_BUSY, SQLITE_LOCKED

_Stamp = tuple[Mark | None, ...]


class Uncopied(Exception):
    """The message says why, and what to do."""


class FileLocked(Uncopied):
    pass


@dataclass(slots=True)
class Copy:
    """The newest copy of one database. `at` is 0 where there is none yet."""

    place: str  # of the database
    file: Path
    stamp: _Stamp = ()
    at: float = 0.0
    due: float = 0.0
    failing_since: float = 0.0
    told: bool = False  # that copying fails was reported

    @property
    def written_ns(self) -> int:
        return max((mark[1] for mark in self.stamp[:3] if mark), default=0)


class Databases:
    """For one thread. Each database is complete by itself: it does not wait for other files of the folder."""

    def __init__(
        self, folder: Path, unkept: Unkept, kept_again: Callable[[str], None], clock: Callable[[], float]
    ) -> None:
        self._folder = folder
        self._unkept = unkept
        self._kept_again = kept_again
        self._clock = clock
        self._number = 0
        self._committed: dict[str, float] = {}  # by path: the copy in the last set
        self.copies: dict[str, Copy] = {}

    @property
    def paths(self) -> set[str]:
        """Of the databases and their journals: none of these files may be committed directly."""
        return {f"{path}{ending}" for path in self.copies for ending in ("", *JOURNALS)}

    def find(self, found: Iterable[FoundFile], busy: set[str]) -> bool:
        """Looks at files that are open or have a journal. True if it found new databases."""
        files = {one.path: one for one in found if one.is_file}
        used = {path for path in files if path in busy}
        used |= {path.rpartition("-")[0] for path in files if path.endswith(JOURNALS)}
        fresh = [path for path in used & files.keys() if is_database(files[path].place)]
        for path in fresh:
            self._number += 1  # unique per copy
            self.copies[path] = Copy(files[path].place, self._folder / f"{self._number}.sqlite")
        return bool(fresh)

    def forget(self) -> None:
        """No process uses them any more: they are ordinary files."""
        self.copies, self._committed = {}, {}

    def refresh(self, *, hurried: bool) -> None:
        """Copies those that have changed. Call it before a look at the folders: the look then sees every file that a
        row refers to."""
        now, pending = self._clock(), self.pending()
        for path, copy in list(self.copies.items()):
            stamp = _stamp(copy.place)
            waits = path in pending and now - copy.at < (PENDING_HURRIED_S if hurried else PENDING_S)
            if stamp[0] is None:
                self.copies.pop(path).file.unlink(missing_ok=True)
            elif stamp != copy.stamp and not waits and (hurried or now >= copy.due):
                self._refresh(path, copy, stamp, LOCKED_HURRIED_S if hurried else LOCKED_S, hurried=hurried)

    def pending(self) -> set[str]:
        """Paths whose newest copy is in no set yet."""
        return {path for path, copy in self.copies.items() if copy.at and self._committed.get(path) != copy.at}

    def committed(self, paths: Iterable[str]) -> None:
        self._committed |= {path: self.copies[path].at for path in paths}

    @property
    def behind(self) -> bool:
        return bool(self.pending()) or any(_stamp(copy.place) != copy.stamp for copy in self.copies.values())

    def _refresh(self, path: str, copy: Copy, stamp: _Stamp, wait_s: float, *, hurried: bool) -> None:
        start = self._clock()
        try:
            self._folder.mkdir(exist_ok=True)
            back_up(copy.place, copy.file, wait_s)
        except Uncopied as error:
            copy.failing_since = copy.failing_since or start
            if hurried or not isinstance(error, FileLocked) or start - copy.failing_since >= TOLD_AFTER_S:
                copy.told = True
                self._unkept(path, str(error))
        else:
            copy.stamp, copy.at, copy.failing_since = stamp, start, 0.0
            if copy.told:
                copy.told = False
                self._kept_again(path)
        now = self._clock()
        copy.due = now + max(LEAST_EVERY_S, SHARE * (now - start))


def is_database(place: str) -> bool:
    """By its header, whatever its name."""
    with suppress(OSError), open_still(place) as file:
        return file.read(len(HEADER)) == HEADER
    return False


def back_up(place: str, target: Path, wait_s: float) -> None:
    """Raises Uncopied. The copy is complete, in one file, or does not exist."""
    try:
        import sqlite3  # here, because most runs have no database, and some Pythons have no SQLite
    except ImportError:
        raise Uncopied(
            "it is an SQLite database, but this node's Python has no `sqlite3` to copy it with; "
            "use a Python that has it, or write results to files instead"
        ) from None
    until = time.monotonic() + wait_s

    def progress(status: int, _left: int, _pages: int) -> None:
        if status in _BUSY and time.monotonic() >= until:
            raise FileLocked(
                "a long write transaction keeps the SQLite database locked; commit more often, or "
                "switch it to write-ahead logging with `PRAGMA journal_mode=WAL`"
            )

    part = target.with_suffix(".part")
    part.unlink(missing_ok=True)
    try:
        with (
            closing(sqlite3.connect(f"file:{quote(place)}?mode=ro", uri=True, timeout=wait_s)) as source,
            closing(sqlite3.connect(part, isolation_level=None)) as copied,
        ):
            copied.execute("PRAGMA synchronous=OFF")  # the copy is uploaded: a power cut loses nothing
            source.backup(copied, progress=progress, sleep=0.02)
        part.replace(target)
    except (sqlite3.Error, OSError) as error:
        locked = getattr(error, "sqlite_errorcode", 0) in _BUSY
        kind = FileLocked if locked else Uncopied
        raise kind(f"the SQLite database cannot be copied ({error}); close it after each save") from error
    finally:
        for ending in ("", *JOURNALS):
            Path(f"{part}{ending}").unlink(missing_ok=True)


def _stamp(place: str) -> _Stamp:
    """Of the database and its journals: an equal stamp means that nothing was written. The `-shm` index is left out,
    because reading changes it, too."""
    marks = tuple(_mark(f"{place}{ending}") for ending in ("", "-journal", "-wal"))
    just_now = time.time_ns() - TICK_NS
    # A file written at this very moment may be written again without a change of its time.
    return (*marks, (time.time_ns(), 0, 0, 0)) if any(mark and mark[1] > just_now for mark in marks) else marks


def _mark(place: str) -> Mark | None:
    with suppress(OSError):
        return mark_of(os.lstat(place))
    return None


# Files that a script keeps open: cloned by the file system, where it can, while they do not change.

CLONE_TOLD_AFTER_S = 5.0  # without a moment in which it did not change
HURRIED_QUIET_S = 0.25
STAYS_OPEN = (
    "the script keeps it open for writing, so it is unknown when it is complete; close it after each save, or, "
    "if it is a log, write it to the outputs"
)
NEVER_STILL = (
    f"the script keeps it open and writes to it without a pause of {2 * QUIET_S:g} s; close it after each save"
)
_FICLONE = 0x40049409  # from linux/fs.h
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO)
_TEXT_BYTES = 4096


@dataclass(slots=True)
class Clone:
    """Of one file. `at` is when the newest good one was made, 0 where there is none yet."""

    file: Path
    since: float  # when the file was first seen to stay open
    at: float = 0.0
    mark: Mark | None = None  # of the file at the time of the good clone
    tried_at: float = 0.0  # a newer clone, which counts if the file has not changed afterwards either
    tried: Mark | None = None
    impossible: bool = False  # the file system does not support clones

    @property
    def written_ns(self) -> int:
        return self.mark[1] if self.mark else 0

    @property
    def part(self) -> Path:
        return self.file.with_suffix(".part")


class Clones:
    """For one thread."""

    def __init__(self, folder: Path, unkept: Unkept) -> None:
        self._folder = folder
        self._unkept = unkept
        self._number = 0
        self._committed: dict[str, float] = {}  # by path: the clone in the last set
        self.copies: dict[str, Clone] = {}

    def note(self, found: Iterable[FoundFile], watch: FileWatch, now: float, *, hurried: bool) -> None:
        """`found` are the files that stay open. A closed one is an ordinary file."""
        there = {one.path: one for one in found}
        for path in self.copies.keys() - there.keys():
            self._forget(path)
        quiet_s = HURRIED_QUIET_S if hurried else QUIET_S
        for path, one in there.items():
            clone = self.copies.get(path) or self._begin(one, now)
            if clone.impossible:
                continue
            if clone.tried and clone.tried == one.mark and now - clone.tried_at >= quiet_s:
                self._accept(clone)
            elif one.mark not in (clone.mark, clone.tried) and now - watch.since(path) >= quiet_s:
                self._try(clone, one, now)
            if not clone.at and clone.tried != one.mark and now - clone.since >= CLONE_TOLD_AFTER_S:
                self._unkept(path, NEVER_STILL)

    def pending(self) -> set[str]:
        """Paths whose newest clone is in no set yet."""
        return {path for path, clone in self.copies.items() if clone.at and self._committed.get(path) != clone.at}

    def committed(self, paths: Collection[str]) -> None:
        self._committed |= {path: self.copies[path].at for path in paths}

    def forget(self) -> None:
        """No process has them open any more: they are ordinary files."""
        for path in list(self.copies):
            self._forget(path)

    def _begin(self, one: FoundFile, now: float) -> Clone:
        """Tries at once, even while the file changes: if the file system does not support clones, it is reported
        now."""
        self._number += 1
        clone = self.copies[one.path] = Clone(self._folder / f"{self._number}.clone", now)
        self._try(clone, one, now)
        clone.tried = None
        return clone

    def _try(self, clone: Clone, one: FoundFile, now: float) -> None:
        try:
            self._folder.mkdir(exist_ok=True)
            same = _clone(one.place, clone.part) == one.mark
        except OSError as error:
            if error.errno not in _GONE:
                clone.impossible = True
                self._unkept(one.path, STAYS_OPEN)
            same = False
        clone.tried, clone.tried_at = (one.mark, now) if same else (None, 0.0)

    def _accept(self, clone: Clone) -> None:
        if _ends_in_a_line(clone.part):
            clone.part.replace(clone.file)
            clone.at, clone.mark = clone.tried_at, clone.tried
        clone.tried = None

    def _forget(self, path: str) -> None:
        clone = self.copies.pop(path)
        self._committed.pop(path, None)
        for file in (clone.file, clone.part):
            file.unlink(missing_ok=True)


def _clone(place: str, target: Path) -> Mark:
    """The mark of the file afterwards. Cloning flushes mapped pages: later writes to them change the time of the file,
    as other writes do. Raises OSError where the file system does not support clones."""
    if sys.platform != "linux":
        raise OSError(errno.EOPNOTSUPP, "only Linux has this")
    with open_still(place) as source, target.open("wb") as copy:
        fcntl.ioctl(copy.fileno(), _FICLONE, source.fileno())
        return mark_of(os.fstat(source.fileno()))


def _ends_in_a_line(place: Path) -> bool:
    """A text whose last line is incomplete has its rest in the writer's memory. Binary files may end with any byte."""
    with place.open("rb") as file:
        start = file.read(_TEXT_BYTES)
        if b"\n" not in start or b"\0" in start or not _is_text(start):
            return True
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def _is_text(data: bytes) -> bool:
    try:
        data[:-4].decode()  # the last character may be cut
    except UnicodeDecodeError:
        return False
    return True
