"""Counts the saves of a node of a gang, as the kernel tells of them: the n-th of one belongs to the n-th of another.

File times do not tell that: clocks differ, and a script may save ten times a second. Linux only; elsewhere nothing is
counted, and the times of files have to do.
"""

from __future__ import annotations

import ctypes
import os
import select
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from stoker.agent.checkpoints.folders.files import present, walk
from stoker.agent.checkpoints.folders.watching import UNFINISHED
from stoker.model.job.sections import BESIDE, CheckpointPaths
from stoker.stores.transfer.verified import Mark, mark_of

RAPID_S = 1.0  # saves that follow each other faster than this are not all committed
MOST_FILES = 256
MOST_BYTES = 16 << 20  # of a state that is held in memory
_SETTLED_S = 0.005  # the kernel shows a new file a moment before it tells of it
_RECENT = 8  # saves by which their pace is measured
_CHANGED = 0x2
_CLOSED, _MOVED, _CREATED, _IGNORED, _OVERFLOW, _FOLDER = 0x8, 0x80, 0x100, 0x8000, 0x4000, 0x40000000
_HEAD = struct.Struct("iIII")


@dataclass(frozen=True, slots=True)
class HeldState:
    """All files of the checkpoint folders right after one save."""

    number: int
    contents: Mapping[str, bytes]
    marks: Mapping[str, Mark]
    counts: Mapping[str, int]
    executable: frozenset[str] = frozenset()


class SaveCounter:
    """A thread. `begin` starts it with the counts of what was restored; `held` is the newest state to commit."""

    def __init__(self, work: Path, paths: CheckpointPaths) -> None:
        self._work, self._paths = work, paths
        self.wake: Callable[[], None] = lambda: None  # called when there is a new held state
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}  # by path: how often it was completed
        self._marks: dict[str, tuple[Mark, float]] = {}  # by path: of the newest count, and when that was noticed
        self._times: deque[float] = deque(maxlen=_RECENT)  # of the last saves
        self._folders: dict[int, str] = {}  # by number of the watch
        self._fd = -1
        self._held: HeldState | None = None
        self._open: set[str] = set()  # files that were changed, and not closed since
        self._shape: set[str] = set()  # the files at the last save
        self._others = False  # there are links, or empty folders
        self._failed = False

    def begin(self, counts: Mapping[str, int]) -> bool:
        """False where nothing can be counted."""
        libc = ctypes.CDLL(None, use_errno=True)
        if not hasattr(libc, "inotify_init1"):
            return False
        self._libc, self._fd = libc, int(libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        if self._fd < 0:
            return False
        self._counts = dict(counts)
        self._watch("")
        for path in self._files():
            self._note(path, time.monotonic() - 1)
        threading.Thread(target=self._run, name="saves", daemon=True).start()
        return True

    def finish(self) -> None:
        self._failed = True

    @property
    def rapid(self) -> bool:
        """Saves follow each other so fast that only some can be committed: the same ones on all nodes, then."""
        with self._lock:
            return not self._failed and len(self._times) == _RECENT and self._pace_s < RAPID_S

    def take(self) -> HeldState | None:
        """The newest state that was not taken yet."""
        with self._lock:
            held, self._held = self._held, None
            return held

    def counts_of(self, marks: Mapping[str, Mark | None]) -> dict[str, int]:
        """How often each file was completed by the time that it had this mark; none where that is not certain."""
        with self._lock:
            known = {path: self._count_at(path, mark) for path, mark in marks.items() if mark and _counts(path)}
        return {path: count for path, count in known.items() if count} if min(known.values(), default=0) >= 0 else {}

    def _count_at(self, path: str, mark: Mark) -> int:
        """-1 where it is not certain."""
        noted = self._marks.get(path)
        if self._failed or noted is None or len(self._counts) > MOST_FILES:
            return -1
        same = (noted[0][0], noted[0][1], noted[0][3]) == (mark[0], mark[1], mark[3])
        return self._counts.get(path, 0) if same and time.monotonic() - noted[1] >= _SETTLED_S else -1

    @property
    def _pace_s(self) -> float:
        return (time.monotonic() - self._times[0]) / len(self._times)

    @property
    def _stride(self) -> int:
        """A power of two: of two nodes that measure differently, one commits all that the other one does."""
        stride = 1
        while stride * self._pace_s < RAPID_S:
            stride *= 2
        return stride

    def _run(self) -> None:
        waiting = select.poll()
        waiting.register(self._fd, select.POLLIN)
        done: set[str] = set()
        while not self._failed:
            if waiting.poll(500):
                with suppress(OSError), self._lock:
                    done |= self._read()
                    if done and not waiting.poll(0):
                        self._completed(done, waiting)
                        done = set()
                if self._held:
                    self.wake()
        os.close(self._fd)

    def _read(self) -> set[str]:
        """The files that were completed."""
        data, done, at = os.read(self._fd, 1 << 16), set[str](), 0
        while at < len(data):
            watch, mask, _, size = _HEAD.unpack_from(data, at)
            name = data[at + _HEAD.size : at + _HEAD.size + size].rstrip(b"\0").decode(errors="surrogateescape")
            at += _HEAD.size + size
            if mask & (_OVERFLOW | _IGNORED) or len(self._counts) + len(self._folders) > 4 * MOST_FILES:
                self._failed = True
                return set()
            path = f"{self._folders[watch]}/{name}".lstrip("/")
            if mask & _FOLDER:
                self._watch(path)
            elif self._paths.root(path) is None or not _counts(path):
                continue
            elif mask & _CHANGED:
                self._open.add(path)
            elif mask & (_CLOSED | _MOVED):
                self._counts[path] = self._counts.get(path, 0) + 1
                self._open.discard(path)
                done.add(path)
        for path in done:
            self._note(path, time.monotonic())
        return done

    def _watch(self, path: str) -> None:
        """This folder and those in it, if checkpoints may be there. A file that is named is seen from its folder."""
        if not self._paths.leads(path):
            return
        mask = _CHANGED | _CLOSED | _MOVED | _CREATED
        number = int(self._libc.inotify_add_watch(self._fd, os.fsencode(self._work / path), mask))
        if number >= 0:
            self._folders[number] = path
            for child in (self._work / path).iterdir():
                if child.is_dir() and not child.is_symlink():
                    self._watch(f"{path}/{child.name}".lstrip("/"))

    def _note(self, path: str, now: float) -> None:
        with suppress(OSError):
            self._marks[path] = mark_of(os.lstat(self._work / path)), now

    def _completed(self, done: set[str], waiting: select.poll) -> None:
        """Holds the state after a save whose number is due, if nothing changes meanwhile."""
        files = self._files()
        counts = {path: self._counts.get(path, 0) for path in files if _counts(path)}
        number = max((counts.get(path, 0) for path in done), default=0)
        moving = {count for count in counts.values() if count > 1}
        if not number or moving - {number} or self._open & counts.keys():
            return  # some of its files are still to come
        if self._shape != counts.keys() or self._others or any(_is_unfinished(path) for path in counts):
            self._shape = set(counts)
            self._times.clear()
            return  # names tell those apart
        self._times.append(time.monotonic())
        if len(self._times) < _RECENT or self._pace_s >= RAPID_S or number % self._stride:
            return
        held = self._hold(number, counts, files)
        if held and not waiting.poll(0):
            self._held = held

    def _hold(self, number: int, counts: Mapping[str, int], files: list[str]) -> HeldState | None:
        contents, marks, executable, size = dict[str, bytes](), dict[str, Mark](), set[str](), 0
        for path in files:
            status = os.lstat(self._work / path)
            size += status.st_size
            if size > MOST_BYTES:
                return None
            contents[path], marks[path] = (self._work / path).read_bytes(), mark_of(status)
            if status.st_mode & 0o100:
                executable.add(path)
        same = all(mark_of(os.lstat(self._work / path)) == mark for path, mark in marks.items())
        return HeldState(number, contents, marks, counts, frozenset(executable)) if same and contents else None

    def _files(self) -> list[str]:
        """Of the checkpoint folders, without links."""
        found, self._others = [], False
        for root in present(self._work, self._paths):
            if (self._work / root).is_symlink():
                self._others = True
            elif (self._work / root).is_file():
                found.append(root)
            for name, entry in walk(str(self._work / root), lambda _path, _error: None):
                if entry and entry.is_file(follow_symlinks=False):
                    found.append(f"{root}/{name}")
                else:
                    self._others = True
        return found


def _counts(path: str) -> bool:
    """What `exact: true` keeps beside a file is written before and after it, and belongs to the same save."""
    return BESIDE not in path.rpartition("/")[2]


def _is_unfinished(path: str) -> bool:
    return any(part.startswith(UNFINISHED) for part in path.split("/"))
