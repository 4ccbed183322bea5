"""Puts the files of a snapshot on the disk, each safe from a power cut; what did not change is linked, not written."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from stoker.checkpoint.read.manifests import FileEntry
from stoker.checkpoint.save.snapshot import StateCopy, digest

_CHUNK_BYTES = 16 << 20

Item = TypeVar("Item")
Made = TypeVar("Made")


class Dropped(Exception):
    """A newer save makes this one pointless."""


class WriteOrders(NamedTuple):
    """How a snapshot is to be written: with how many threads; `dropped` says that it is not worth going on, and
    `newer_waits` that another is ready."""

    threads: int
    dropped: Callable[[], bool]
    newer_waits: Callable[[], bool]


class Written(NamedTuple):
    """What a manifest says of these files, and how many bytes had to be written for them."""

    files: dict[str, FileEntry]
    tensors: dict[str, str]
    moved_bytes: int


def write_files(snapshot: StateCopy, folder: Path, known: Mapping[str, Path], orders: WriteOrders) -> Written:
    """`known` says where on this disk a file with a given hash already is."""
    snapshot.settle()
    folder.mkdir(parents=True, exist_ok=True)

    def write(file: str, pieces: list[memoryview]) -> tuple[FileEntry, int]:
        if orders.dropped():
            raise Dropped
        entry = FileEntry(sum(map(len, pieces)), digest(pieces))
        if (there := known.get(entry.sha256)) and _linked(there, folder / file):
            return entry, 0
        _write(folder / file, pieces, orders.dropped)
        return entry, entry.size_bytes

    files = list(snapshot.files())
    done = in_threads(lambda one: write(one[0], one[1]), files, orders.threads)
    sync_folder(folder)
    return Written(
        {file: entry for (file, _, _), (entry, _) in zip(files, done, strict=True)},
        {name: file for file, _, names in files for name in names},
        sum(moved for _, moved in done),
    )


def in_threads(work: Callable[[Item], Made], items: Sequence[Item], threads: int) -> list[Made]:
    """What `work` makes of each, in their order. Raises what it raised first.

    Not by an executor: those refuse to work once the script has come to its end, which is when the last save is made.
    """
    if threads == 1:
        return [work(item) for item in items]
    made: dict[int, Made] = {}
    errors: list[BaseException] = []
    waiting = iter(enumerate(items))  # handed out one by one, which is safe in threads

    def help_out() -> None:
        try:
            for place, item in waiting:
                made[place] = work(item)
                if errors:
                    return
        except BaseException as error:
            errors.append(error)

    helpers = [threading.Thread(target=help_out, name="stoker-write", daemon=True) for _ in range(threads)]
    for helper in helpers:
        helper.start()
    for helper in helpers:
        helper.join()
    if errors:
        raise errors[0]
    return [made[place] for place in range(len(items))]


def _linked(there: Path, here: Path) -> bool:
    try:
        os.link(there, here)
    except OSError:  # gone, on another disk, or a disk that cannot
        return False
    return True


def _write(path: Path, pieces: list[memoryview], dropped: Callable[[], bool]) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    try:
        for piece in pieces:
            at = 0
            while at < len(piece):
                if dropped():
                    raise Dropped
                at += os.write(fd, piece[at : at + _CHUNK_BYTES])
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_folder(folder: Path, its_files: tuple[str, ...] = ()) -> None:
    for path in (*(folder / name for name in its_files), folder):
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
