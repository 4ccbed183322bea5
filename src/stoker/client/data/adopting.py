"""Puts files into a store that is a folder of this computer: each is read once, hashed and copied in the same pass."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from stoker.client.data.folder import Found, Seen
from stoker.client.progress import Progress
from stoker.client.statindex import StatIndex
from stoker.errors import DatasetRefused
from stoker.model import layout
from stoker.model.dataset import DataFile
from stoker.stores.folder import Adopted, FolderStore
from stoker.stores.transfer import AT_ONCE, side_by_side

_TRIES = 3  # for a file that changes while it is read
_SMALL_BYTES = 256 << 10
_SAMPLE = 64  # small files that tell how long one takes
_FAR_S = 0.001  # a disk that takes longer is a network's
_SAVE_S = 20.0  # what is lost at most of the work of hashing when the process is killed


class _Waiting(NamedTuple):
    found: Found

    @property
    def size_bytes(self) -> int:
        return self.found.seen.st_size


class Adopting:
    """`has` says which contents the store has; it is asked about files whose hash is known from an earlier time."""

    def __init__(self, folder: FolderStore, index: StatIndex, has: Callable[[str], bool], progress: Progress) -> None:
        self._folder = folder
        self._index = index
        self._has = has
        self._progress = progress
        self._lock = threading.Lock()
        self._save_at = time.monotonic() + _SAVE_S
        self.files: list[DataFile] = []
        self.sent: dict[str, int] = {}

    def run(self, found: list[Found]) -> None:
        """Large files side by side. Small ones one by one, unless the disk is far: what a near one takes for a small
        file is less than what threads take to wait for each other."""
        small = [one for one in found if one.seen.st_size <= _SMALL_BYTES]
        self._side_by_side([one for one in found if one.seen.st_size > _SMALL_BYTES], self._folder.at_once)
        begun = time.monotonic()
        for number, one in enumerate(small):
            if number == _SAMPLE and time.monotonic() - begun > _SAMPLE * _FAR_S:
                self._side_by_side(small[_SAMPLE:], AT_ONCE)
                break
            self._take(one)
        self._index.save()

    def _side_by_side(self, found: list[Found], at_once: int) -> None:
        side_by_side(map(_Waiting, found), lambda one: self._take(one.found), None, at_once)

    def _take(self, one: Found) -> None:
        if (sha256 := self._index.known(one.path, one.seen)) and self._has(sha256):
            self._note(one, sha256, new=False)
            return
        read_at_ns = time.time_ns()
        adopted = self._adopt(one)
        held = one._replace(seen=Seen.of(adopted.seen))
        self._index.learn(held.path, held.seen, adopted.sha256, read_at_ns)
        self._note(held, adopted.sha256, new=adopted.new)

    def _adopt(self, one: Found) -> Adopted:
        for _ in range(_TRIES):
            try:
                adopted = self._folder.adopt(one.place, _rest)
            except OSError as error:
                reason = (error.strerror or str(error)).lower()
                hint = "make it readable, or leave it out"
                raise DatasetRefused(f"`{one.path}` cannot be read: {reason}", hint=hint) from error
            if adopted.sha256:
                return adopted
        raise DatasetRefused(
            f"`{one.path}` changed each of the {_TRIES} times it was read", hint="try again once nothing writes to it"
        )

    def _note(self, one: Found, sha256: str, *, new: bool) -> None:
        size = one.seen.st_size
        with self._lock:
            self.files.append(DataFile(one.path, size, sha256))
            if new:
                self.sent[sha256] = size
            tell: Callable[[int, int], None] = self._progress.moved if new else self._progress.skipped
            tell(size, 1)
            if time.monotonic() > self._save_at:
                self._index.save(unfinished=True)
                self._save_at = time.monotonic() + _SAVE_S


def _rest(sha256: str) -> str:
    """The folder is what the contents lie in."""
    return layout.content(sha256).removeprefix(layout.CONTENTS)
