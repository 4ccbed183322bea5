"""Files that a script keeps open: cloned by the file system, where it can, in a moment in which they hold still."""

from __future__ import annotations

import errno
import fcntl
import os
import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from stoker.agent.contents import open_still
from stoker.agent.growing import QUIET_S
from stoker.agent.watching import Found, Unkept, Watch
from stoker.stores.transfer.still import Mark, mark_of

TOLD_AFTER_S = 5.0  # without a moment in which it held still
HURRIED_QUIET_S = 0.25
STAYS_OPEN = (
    "the script keeps it open for writing, so nobody can tell when it is whole; close it after each save, or, "
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
    mark: Mark | None = None  # of the file when the good one was made
    tried_at: float = 0.0  # there is one more, which counts when the file has held still behind it, too
    tried: Mark | None = None
    impossible: bool = False  # the file system cannot clone

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
        self._committed: dict[str, float] = {}  # by path: the clone that the last set has
        self.copies: dict[str, Clone] = {}

    def note(self, found: Iterable[Found], watch: Watch, now: float, *, hurried: bool) -> None:
        """`found` are the files that stay open. One that is closed is a file like others."""
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
            if not clone.at and clone.tried != one.mark and now - clone.since >= TOLD_AFTER_S:
                self._unkept(path, NEVER_STILL)

    def pending(self) -> set[str]:
        """Paths whose newest clone is in no set yet."""
        return {path for path, clone in self.copies.items() if clone.at and self._committed.get(path) != clone.at}

    def committed(self, paths: Collection[str]) -> None:
        self._committed |= {path: self.copies[path].at for path in paths}

    def forget(self) -> None:
        """Nobody has them open any more: they are files like others."""
        for path in list(self.copies):
            self._forget(path)

    def _begin(self, one: Found, now: float) -> Clone:
        """Tries at once, however restless it is: where the file system cannot clone, that is told now, not later."""
        self._number += 1
        clone = self.copies[one.path] = Clone(self._folder / f"{self._number}.clone", now)
        self._try(clone, one, now)
        clone.tried = None
        return clone

    def _try(self, clone: Clone, one: Found, now: float) -> None:
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
    """The mark that the file then has. To clone writes out what is mapped: whoever writes there afterwards changes the
    time of the file, as other writers do. Raises OSError where the file system cannot clone."""
    if sys.platform != "linux":
        raise OSError(errno.EOPNOTSUPP, "only Linux has this")
    with open_still(place) as source, target.open("wb") as copy:
        fcntl.ioctl(copy.fileno(), _FICLONE, source.fileno())
        return mark_of(os.fstat(source.fileno()))


def _ends_in_a_line(place: Path) -> bool:
    """The rest of a text whose last line is not finished is in its writer's memory. What is not text may end anyhow."""
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
