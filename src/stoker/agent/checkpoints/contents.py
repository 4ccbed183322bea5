"""File contents in the store, by hash: each is uploaded once, and only if it did not change while it was read."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import stat
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from stoker.agent.checkpoints.folders.files import Identity, numbers_in, room_for
from stoker.agent.checkpoints.folders.watching import FoundFile, Unkept
from stoker.errors import Corrupt, Missing
from stoker.model.snapshot import Entry
from stoker.stores import Store
from stoker.stores.transfer.verified import Mark, Still, mark_of

SMALL_BYTES = 4 << 20  # up to this size a file is read once, into memory
PIECE_BYTES = 4 << 20


class Changing(Exception):
    """The file changed while it was read."""


class Contents:
    """For one thread. `key` maps a hash to its key; `first`: the store cannot contain anything yet; `alone`: no other
    node can rely on these contents."""

    def __init__(self, store: Store, key: Callable[[str], str], *, alone: bool, first: bool) -> None:
        self._store = store
        self._key = key
        self._alone = alone
        self._first = first
        self._there: set[str] = set()
        self._own: set[str] = set()  # this agent may delete them
        self._unused: dict[str, float] = {}

    def adopt(self, hashes: Iterable[str]) -> None:
        """Earlier attempts uploaded these. From now on this agent may delete them."""
        self._own |= set(hashes)
        self._there |= self._own
        self._first = True

    def has(self, sha256: str) -> bool:
        """Known to be in the store, without a request."""
        return sha256 in self._there

    def ship(self, place: str, mark: Mark) -> str:
        """Uploads the file's content where it is missing, and returns its hash."""
        with open_still(place) as file:
            return self.ship_open(file, mark)

    def ship_open(self, file: io.FileIO, mark: Mark) -> str:
        """The same for an open file, which may be removed from its folder by now."""
        if mark[0] <= SMALL_BYTES:
            data = file.read(SMALL_BYTES + 1)
            _check(file, mark, len(data))
            return self.ship_bytes(data)
        sha256 = _hash(file, mark)
        if not self._has(sha256):
            file.seek(0)
            # While the file is unchanged, the second read returns the same bytes: no need to hash them again.
            still = Still(file, sha256, _of_content(mark), _content_mark)
            try:
                self._put(sha256, cast(BinaryIO, still))
            except Corrupt:
                raise Changing from None
        return sha256

    def ship_bytes(self, data: bytes) -> str:
        """The same for bytes in memory."""
        sha256 = hashlib.sha256(data).hexdigest()
        if not self._has(sha256):
            self._put(sha256, data)
        return sha256

    def forget(self, used: set[str], after_s: float) -> None:
        """Deletes what this agent uploaded and no file has contained for a while: old contents of a file that is
        rewritten again and again. With several nodes, another one may rely on it, so it stays."""
        if not self._alone:
            return
        now = time.monotonic()
        self._unused = {sha256: self._unused.get(sha256, now) for sha256 in self._own - used}
        for sha256 in [sha256 for sha256, since in self._unused.items() if now - since >= after_s]:
            self._there.discard(sha256)  # first: whether or not the delete succeeds, it cannot be relied on
            self._store.delete(self._key(sha256))
            self._own.discard(sha256)

    def _has(self, sha256: str) -> bool:
        if sha256 not in self._there and not self._first:
            try:
                self._store.get(self._key(sha256), 0, 0)
                self._there.add(sha256)
            except Missing:
                pass
        return sha256 in self._there

    def _put(self, sha256: str, data: bytes | BinaryIO) -> None:
        self._own.add(sha256)  # even if the put fails: a store may have created it before it reported a failure
        self._store.put(self._key(sha256), data)
        self._there.add(sha256)


def open_still(place: str) -> io.FileIO:
    """Does not follow a link or block on a pipe. Raises OSError for anything but a regular file."""
    fd = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):  # replaced since the look, by a folder or a pipe
            raise OSError(errno.ENXIO, os.strerror(errno.ENXIO), place)
        return io.FileIO(fd, "rb")
    except OSError:
        os.close(fd)
        raise


def _hash(file: io.FileIO, mark: Mark) -> str:
    digest, size, buffer = hashlib.sha256(), 0, memoryview(bytearray(PIECE_BYTES))
    while count := file.readinto(buffer):
        digest.update(buffer[:count])
        size += count
    _check(file, mark, size)
    return digest.hexdigest()


def _check(file: io.FileIO, mark: Mark, size: int) -> None:
    if size != mark[0] or _content_mark(os.fstat(file.fileno())) != _of_content(mark):
        raise Changing


def _content_mark(status: os.stat_result) -> Mark:
    return _of_content(mark_of(status))


def _of_content(mark: Mark) -> Mark:
    """Without the time of its last status change: hard links to it come and go without changing a byte."""
    return (mark[0], mark[1], 0, mark[3])


# Files kept open since the look that found them: what a script removes or replaces afterwards can still be read.
#
# On a busy node, a script may save and remove several times between a look at its folders and the moment when the last
# of many files could be opened.

READ_AT_ONCE_BYTES = 1 << 20  # up to this size a file that may be rewritten in place is read at once
MOST_READ_BYTES = 32 << 20  # of all of them together


@dataclass(frozen=True, slots=True)
class Pin:
    mark: Mark
    file: io.FileIO
    data: bytes | None = None  # the whole content, where it was read at once


class Pins:
    """For one thread."""

    def __init__(self) -> None:
        self._held: dict[str, Pin] = {}
        self._limit = ExitStack()
        self._room = 0

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, some: Iterable[FoundFile], known: Callable[[FoundFile], bool]) -> set[str]:
        """Opens what is not in the store yet. Returns the paths of files that are gone by now."""
        wanted = [one for one in some if one.is_file and self.get(one) is None and not known(one)]
        self._make_room(len(self._held) + len(wanted))
        gone = set()
        for one in wanted:
            self._let_go([one.path])  # it was another file, or had other content
            if len(self._held) >= self._room:
                continue
            try:
                self._held[one.path] = self._pinned(one, open_still(one.place))
            except FileNotFoundError:
                gone.add(one.path)
            except OSError:
                continue  # the upload reports why it cannot be read
        return gone

    def let_go_of_others(self, found: Iterable[FoundFile]) -> None:
        there = {one.path for one in found if self.get(one)}
        self._let_go(self._held.keys() - there)

    def get(self, one: FoundFile) -> Pin | None:
        pin = self._held.get(one.path)
        return pin if _is_of(pin, one) else None

    def release(self) -> None:
        self._let_go(self._held)
        self._limit.close()
        self._room = 0

    def _pinned(self, one: FoundFile, file: io.FileIO) -> Pin:
        mark = mark_of(os.fstat(file.fileno()))
        read = sum(len(pin.data) for pin in self._held.values() if pin.data)
        if numbers_in(one.path) or mark[0] > min(READ_AT_ONCE_BYTES, MOST_READ_BYTES - read):
            return Pin(mark, file)
        with suppress(OSError):
            data = file.read(mark[0] + 1)
            if len(data) == mark[0] and mark_of(os.fstat(file.fileno())) == mark:
                return Pin(mark, file, data)
        return Pin(mark, file)

    def _make_room(self, files: int) -> None:
        if files > self._room:
            self._room = self._limit.enter_context(room_for(files))

    def _let_go(self, paths: Iterable[str]) -> None:
        for path in list(paths):
            if pin := self._held.pop(path, None):
                pin.file.close()


def _is_of(pin: Pin | None, one: FoundFile | None) -> bool:
    """It is the file that was found, with the same content."""
    if pin is None or one is None or one.mark is None:
        return False
    return (pin.mark[0], pin.mark[1], pin.mark[3]) == (one.mark[0], one.mark[1], one.mark[3])


# Uploads files in the state in which they were seen, even if the script removes them meanwhile.

_REPLACED = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO)  # removed, or replaced by a link, folder or pipe

_Content = tuple[Identity | None, int, int, int]  # which file, and the mark of its content


class Sending:
    """For one thread."""

    def __init__(self, contents: Contents, unkept: Unkept) -> None:
        self._contents = contents
        self._unkept = unkept
        self._hashes: dict[_Content, str] = {}

    def learn(self, found: Collection[FoundFile], entries: Mapping[str, Entry]) -> None:
        """These are in the store."""
        self._hashes = {_content(one): entries[one.path].sha256 for one in found if one.path in entries}

    def forget(self, found: Collection[FoundFile]) -> None:
        """Files that no longer exist."""
        current = {_content(one) for one in found}
        self._hashes = {content: sha256 for content, sha256 in self._hashes.items() if content in current}

    def knows(self, one: FoundFile) -> bool:
        """Its content is in the store."""
        return not one.is_file or self._contents.has(self._hashes.get(_content(one), ""))

    def send(self, some: Collection[FoundFile], pins: Pins) -> dict[str, Entry]:
        """By path. Raises Changing where a file was removed before it was opened, or changed while it was read."""
        entries = {one.path: known for one in some if (known := self._known(one))}
        unknown = [one for one in some if one.path not in entries]
        loose = [one for one in unknown if not pins.get(one)]
        with ExitStack() as opened:
            # All are open before the first is uploaded. Hard links would hold them too, but change the script's own
            # files.
            room = opened.enter_context(room_for(len(pins) + len(loose))) - len(pins)
            files = {one.path: self._open(one, opened) for one in loose[: max(room, 0)]}
            for one in unknown:
                # Several hard links to one file are one content.
                if entry := self._known(one):
                    entries[one.path] = entry
                elif sha256 := self._send_pinned(one, pins) or self._send_open(one, files, opened):
                    self._hashes[_content(one)] = sha256
                    entries[one.path] = _entry(one, sha256)
        return entries

    def _send_pinned(self, one: FoundFile, pins: Pins) -> str:
        """Its hash; empty where it was not kept open since the look."""
        pin = pins.get(one)
        if pin is None:
            return ""
        if pin.data is not None:
            return self._contents.ship_bytes(pin.data)
        pin.file.seek(0)
        return self._contents.ship_open(pin.file, pin.mark)

    def _send_open(self, one: FoundFile, files: Mapping[str, io.FileIO | None], opened: ExitStack) -> str:
        """Its hash; empty where reading is not permitted."""
        file = files[one.path] if one.path in files else self._open(one, opened)
        if file is None or one.mark is None:
            return ""
        with file:
            return self._contents.ship_open(file, one.mark)

    def send_copy(self, path: str, copy: Path) -> Entry:
        """Of a file that is copied, because a process keeps it open."""
        with open_still(str(copy)) as file:
            mark = mark_of(os.fstat(file.fileno()))
            return Entry(path, sha256=self._contents.ship_open(file, mark), size_bytes=mark[0])

    def _open(self, one: FoundFile, opened: ExitStack) -> io.FileIO | None:
        """None where reading is not permitted."""
        try:
            return opened.enter_context(open_still(one.place))
        except OSError as error:
            if error.errno in _REPLACED:
                raise Changing from error
            if not isinstance(error, PermissionError):
                raise
            self._unkept(one.path, str(error.strerror))
            return None

    def _known(self, one: FoundFile) -> Entry | None:
        """None where its content is not known to be in the store."""
        if not one.is_file:
            return one.entry
        sha256 = self._hashes.get(_content(one), "")
        return _entry(one, sha256) if self._contents.has(sha256) else None


def _entry(one: FoundFile, sha256: str) -> Entry:
    """As `dataclasses.replace`, in a third of the time: there may be thousands."""
    return Entry(one.path, sha256=sha256, size_bytes=one.entry.size_bytes, executable=one.entry.executable)


def _content(one: FoundFile) -> _Content:
    return (one.identity, *(one.mark[:3] if one.mark else (0, 0, 0)))
