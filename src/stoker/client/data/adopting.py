"""Copies files into a store that is a local folder: each is read once, hashed and copied in the same pass."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from stoker.client.data.adopter import Answer, content_below
from stoker.client.data.folder import FileStat, FolderFile
from stoker.client.progress import TransferProgress
from stoker.client.source.statindex import StatIndex
from stoker.errors import DatasetRefused
from stoker.model.dataset import DataFile
from stoker.stores.folder.store import Adopted, FolderStore
from stoker.stores.transfer.files import side_by_side

_TRIES = 3  # for a file that changes while it is read
_SMALL_BYTES = 256 << 10
_SAVE_S = 20.0  # the most hashing work that is lost when the process is killed


class _Waiting(NamedTuple):
    found: FolderFile

    @property
    def size_bytes(self) -> int:
        return self.found.seen.st_size


class Adopting:
    """`has` says which contents the store has; it is called for files whose hash is known from an earlier run."""

    def __init__(
        self, folder: FolderStore, index: StatIndex, has: Callable[[str], bool], progress: TransferProgress
    ) -> None:
        self._folder = folder
        self._index = index
        self._has = has
        self._progress = progress
        self._lock = threading.Lock()
        self._save_at = time.monotonic() + _SAVE_S
        self.files: list[DataFile] = []
        self.sent: dict[str, int] = {}

    def run(self, found: list[FolderFile]) -> None:
        """Many new small files are copied by several processes, the rest by threads."""
        rest = [one for one in found if not self._is_there(one)]
        small = [one for one in rest if one.seen.st_size <= _SMALL_BYTES]
        if len(small) >= LEAST_FILES:
            read_at_ns = time.time_ns()
            adopt(self._folder.root, small, lambda one, answer: self._taken(one, answer, read_at_ns))
            rest = [one for one in rest if one.seen.st_size > _SMALL_BYTES]
        side_by_side(map(_Waiting, rest), lambda one: self._take(one.found), None, self._folder.at_once)
        self._index.save()

    def _is_there(self, one: FolderFile) -> bool:
        sha256 = self._index.known(one.path, one.seen)
        if not sha256 or not self._has(sha256):
            return False
        self._note(one, sha256, new=False)
        return True

    def _taken(self, one: FolderFile, answer: Answer | None, read_at_ns: int) -> None:
        if answer is None:
            self._take(one)
            return
        sha256, new, *seen = answer
        self._learn(one._replace(seen=FileStat(*seen)), sha256, new, read_at_ns)

    def _take(self, one: FolderFile) -> None:
        read_at_ns = time.time_ns()
        adopted = self._adopt(one)
        self._learn(one._replace(seen=FileStat.of(adopted.seen)), adopted.sha256, adopted.new, read_at_ns)

    def _learn(self, one: FolderFile, sha256: str, new: bool, read_at_ns: int) -> None:
        self._index.learn(one.path, one.seen, sha256, read_at_ns)
        self._note(one, sha256, new=new)

    def _adopt(self, one: FolderFile) -> Adopted:
        for _ in range(_TRIES):
            try:
                adopted = self._folder.adopt(one.place, content_below)
            except OSError as error:
                reason = (error.strerror or str(error)).lower()
                hint = "make it readable, or exclude it"
                raise DatasetRefused(f"`{one.path}` cannot be read: {reason}", hint=hint) from error
            if adopted.sha256:
                return adopted
        raise DatasetRefused(
            f"`{one.path}` changed each of the {_TRIES} times it was read", hint="retry when no process writes to it"
        )

    def _note(self, one: FolderFile, sha256: str, *, new: bool) -> None:
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


# Several processes that copy small files into a folder store: in one, Python's threads would block each other.

LEAST_FILES = 1_000  # with fewer, starting a process costs more than it saves
_FILES_EACH = 500  # per process
_MOST = 8
_AT_ONCE = 100  # files per request


class _Group(NamedTuple):
    found: list[FolderFile]
    size_bytes: int = 0


def adopt(root: Path, found: list[FolderFile], take: Callable[[FolderFile, Answer | None], None]) -> None:
    """`take` is called for each, by several threads. None: it has to be checked."""
    groups = (_Group(found[at : at + _AT_ONCE]) for at in range(0, len(found), _AT_ONCE))
    with _processes(root, min(os.cpu_count() or 1, len(found) // _FILES_EACH, _MOST)) as idle:

        def work(group: _Group) -> None:
            process = idle.get()
            try:
                answers = _ask(process, [one.place for one in group.found])
            finally:
                idle.put(process)
            for one, answer in zip(group.found, answers, strict=True):
                take(one, answer)

        side_by_side(groups, work, None, idle.qsize())


@contextmanager
def _processes(root: Path, count: int) -> Iterator[queue.SimpleQueue[subprocess.Popen[bytes]]]:
    argv = [sys.executable, "-m", "stoker.client.data.adopter", str(root)]
    started = [subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(max(count, 1))]
    idle: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()
    try:
        for process in started:
            idle.put(process)
        yield idle
    finally:
        for process in started:
            process.kill()  # each has responded, or is no longer needed
            process.communicate()


def _ask(process: subprocess.Popen[bytes], places: list[str]) -> list[Answer | None]:
    """All None if the process is gone, or cannot work."""
    assert process.stdin and process.stdout
    try:
        process.stdin.write(json.dumps(places).encode() + b"\n")
        process.stdin.flush()
        answers: list[Answer | None] = json.loads(process.stdout.readline())
        return answers
    except (OSError, ValueError):
        return [None] * len(places)
