"""What lies in the checkpoint folders, look by look: how long each file has held still, and which are being written."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from stoker.agent.openfiles import Identity
from stoker.agent.tree import walk
from stoker.model.snapshot import Entry, EntryKind
from stoker.stores.still import Mark, mark_of

STREAM_S = 20.0  # a file that is open for writing for this long and hardly grows is a log, not a checkpoint
STREAM_BYTES_PER_S = 1e6
# How `stoker.checkpoint` names what is not a checkpoint yet, or is none any more.
UNFINISHED = (".writing-", ".removing-", "quarantine/")

Unkept = Callable[[str, str], None]  # the path of something that cannot be kept, and why


@dataclass(frozen=True, slots=True)
class Found:
    """One thing below a checkpoint folder at one look. Empty folders have no mark."""

    path: str
    place: str
    mark: Mark | None
    identity: Identity | None
    entry: Entry  # without its hash, for a file

    @property
    def is_file(self) -> bool:
        return self.entry.kind is EntryKind.FILE


class Watch:
    """For one thread. `now` is a steady clock's, in seconds."""

    def __init__(self, work: Path, folders: Iterable[str], unkept: Unkept) -> None:
        self._work = work
        self._folders = tuple(folders)
        self._unkept = unkept
        self._since: dict[str, tuple[Mark | None, float]] = {}  # by path: its mark, and when that was first seen
        self._changed_at = 0.0  # when something last went away
        self._rested_at = 0.0
        self._open: dict[str, tuple[float, int]] = {}  # by path: since when it is open for writing, and its size then
        self.found: list[Found] = []
        self.changes: dict[str, int] = {}  # by path: how often it was seen changed since `rest`
        self.longest_pause_s = 0.0  # between two changes since `rest`

    def look(self, now: float) -> None:
        found = []
        for top in self._folders:
            for name, thing in walk(str(self._work / top), lambda path, error: self._unkept(path, str(error.strerror))):
                if name.startswith(UNFINISHED):
                    continue
                path = f"{top}/{name}"
                try:
                    if seen := _see(path, str(self._work / path), thing):
                        found.append(seen)
                except FileNotFoundError:
                    pass
                except UnicodeEncodeError:
                    self._unkept(path.encode(errors="replace").decode(), "its name is not UTF-8")
                except OSError as error:
                    self._unkept(path, str(error.strerror))
        found.sort(key=lambda one: one.path)
        before, self._since, last = self._since, {}, self.changed_at()
        for one in found:
            mark, since = before.get(one.path, (None, now))
            same = one.path in before and mark == one.mark
            self._since[one.path] = one.mark, since if same else now
            if not same:
                self.changes[one.path] = self.changes.get(one.path, 0) + 1
        if before.keys() - self._since.keys():
            self._changed_at = now
        self.found = found
        if self.changes and self.changed_at() == now:
            self.longest_pause_s = max(self.longest_pause_s, now - max(last, self._rested_at))

    @property
    def marks(self) -> dict[str, Mark | None]:
        return {one.path: one.mark for one in self.found}

    @property
    def some_open(self) -> bool:
        """Something was open for writing at the last look."""
        return bool(self._open)

    def note_open(self, busy: set[Identity], now: float) -> set[str]:
        """Takes note of what is open for writing, and returns the paths."""
        opened = {one.path: one for one in self.found if one.is_file and one.identity in busy}
        self._open = {path: self._open.get(path, (now, _size(one))) for path, one in opened.items()}
        return set(opened)

    def streams(self, now: float) -> set[str]:
        """Files that somebody keeps open, and writes little to: nobody waits for these to be finished."""
        slow = set()
        for one in self.found:
            since, size = self._open.get(one.path, (now, 0))
            if now - since >= STREAM_S and abs(_size(one) - size) < STREAM_BYTES_PER_S * (now - since):
                slow.add(one.path)
        return slow

    def fresh(self, within_s: float, now: float) -> set[str]:
        """Paths of what has changed within this time."""
        return {path for path, (_, since) in self._since.items() if now - since < within_s}

    def changed_at(self, without: Collection[str] = ()) -> float:
        """When something was last seen changed, these left aside."""
        times = (since for path, (_, since) in self._since.items() if path not in without)
        return max(self._changed_at, max(times, default=0.0))

    def rest(self, now: float) -> None:
        """Everything is as it should be: what changes from here on belongs together."""
        self.changes, self.longest_pause_s, self._rested_at = {}, 0.0, now

    def in_step(self, known: Collection[str]) -> bool:
        """Whether those of the known files that are written again have been written equally often: no round of them is
        half done, as far as looking tells."""
        counts = {self.changes[one.path] for one in self.found if one.path in self.changes and one.path in known}
        return len(counts) <= 1

    def in_shape(self, known: Collection[str]) -> bool:
        """Whether every folder directly in a checkpoint folder has the files that all the known ones had: one that does
        not is half done, or half removed."""
        before, now = self._shapes(known), self._shapes([one.path for one in self.found if one.is_file])
        common = set.intersection(*before.values()) if before else set()
        return all(common <= names for names in now.values())

    def _shapes(self, paths: Iterable[str]) -> dict[str, set[str]]:
        """What is in each of those folders, by names relative to it."""
        shapes: dict[str, set[str]] = {}
        for path in paths:
            child = self.child(path)
            if child != path:
                shapes.setdefault(child, set()).add(path[len(child) :])
        return shapes

    def long_open(self, seconds: float, now: float) -> set[str]:
        """Files that have been open for writing for as long as this."""
        return {path for path, (since, _) in self._open.items() if now - since >= seconds}

    def child(self, path: str) -> str:
        """What `path` belongs to: the file or folder directly in a checkpoint folder."""
        top = next(top for top in self._folders if path.startswith(f"{top}/"))
        return f"{top}/{path[len(top) + 1 :].partition('/')[0]}"


def _size(one: Found) -> int:
    return one.mark[0] if one.mark else 0


def _see(path: str, place: str, thing: os.DirEntry[str] | None) -> Found | None:
    path.encode()
    if thing is None:
        return Found(path, place, None, None, Entry(path, EntryKind.FOLDER))
    status = thing.stat(follow_symlinks=False)
    mark, identity = mark_of(status), (status.st_dev, status.st_ino)
    if stat.S_ISLNK(status.st_mode):
        target = os.readlink(place)  # noqa: PTH115  # text, not a Path
        target.encode()
        return Found(path, place, mark, identity, Entry(path, EntryKind.LINK, target=target))
    if not stat.S_ISREG(status.st_mode):
        return None
    executable = bool(status.st_mode & stat.S_IXUSR)
    return Found(path, place, mark, identity, Entry(path, size_bytes=status.st_size, executable=executable))
