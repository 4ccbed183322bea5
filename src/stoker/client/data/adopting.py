"""Puts files into a store that is a folder of this computer: each is read once, hashed and copied in the same pass."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from stoker.client.data import adopters
from stoker.client.data.adopter import Answer, content_below
from stoker.client.data.folder import Found, Seen
from stoker.client.progress import Progress
from stoker.client.statindex import StatIndex
from stoker.errors import DatasetRefused
from stoker.model.dataset import DataFile
from stoker.stores.folder.store import Adopted, FolderStore
from stoker.stores.transfer.files import side_by_side

_TRIES = 3  # for a file that changes while it is read
_SMALL_BYTES = 256 << 10
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
        """What is new and small goes by processes of their own if it is many, the rest side by side."""
        rest = [one for one in found if not self._is_there(one)]
        small = [one for one in rest if one.seen.st_size <= _SMALL_BYTES]
        if len(small) >= adopters.LEAST_FILES:
            read_at_ns = time.time_ns()
            adopters.adopt(self._folder.root, small, lambda one, answer: self._taken(one, answer, read_at_ns))
            rest = [one for one in rest if one.seen.st_size > _SMALL_BYTES]
        side_by_side(map(_Waiting, rest), lambda one: self._take(one.found), None, self._folder.at_once)
        self._index.save()

    def _is_there(self, one: Found) -> bool:
        sha256 = self._index.known(one.path, one.seen)
        if not sha256 or not self._has(sha256):
            return False
        self._note(one, sha256, new=False)
        return True

    def _taken(self, one: Found, answer: Answer | None, read_at_ns: int) -> None:
        if answer is None:
            self._take(one)
            return
        sha256, new, *seen = answer
        self._learn(one._replace(seen=Seen(*seen)), sha256, new, read_at_ns)

    def _take(self, one: Found) -> None:
        read_at_ns = time.time_ns()
        adopted = self._adopt(one)
        self._learn(one._replace(seen=Seen.of(adopted.seen)), adopted.sha256, adopted.new, read_at_ns)

    def _learn(self, one: Found, sha256: str, new: bool, read_at_ns: int) -> None:
        self._index.learn(one.path, one.seen, sha256, read_at_ns)
        self._note(one, sha256, new=new)

    def _adopt(self, one: Found) -> Adopted:
        for _ in range(_TRIES):
            try:
                adopted = self._folder.adopt(one.place, content_below)
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
