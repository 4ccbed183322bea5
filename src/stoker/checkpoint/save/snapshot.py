"""A copy of the state that is made while the training computes, and its files on the disk, each safe from a power
cut."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from stoker.checkpoint.read import format
from stoker.checkpoint.read.format import FileEntry
from stoker.checkpoint.state.structure import Leaf, view


class Copying:
    """`work` makes the copy, beside the training; `tensors` are those that must not change until it is done. `then` is
    called when nobody waits any more."""

    def __init__(self, tensors: Sequence[Any], work: Callable[[], None], then: Callable[[], None]) -> None:
        """Raises RuntimeError where PyTorch does not count the changes of one, as in inference mode."""
        self._tensors = tensors
        self._versions = [tensor._version for tensor in tensors]
        self._work: Callable[[], None] | None = work
        self._then: Callable[[], None] | None = then
        self._verdict: bool | None = None
        self._judging = threading.Lock()
        self._working = threading.Lock()  # quicker to make than an event
        self._working.acquire()
        self.error: Exception | None = None  # that the work ended with

    def run(self) -> None:
        (work, self._work), (then, self._then) = (self._work, None), (self._then, None)
        assert work is not None
        assert then is not None
        try:
            work()
        except Exception as error:
            self.error = error
        finally:
            self._working.release()
        then()

    def wait(self) -> None:
        with self._working:
            pass

    def good(self) -> bool:
        """Whether nothing had changed a tensor when this was first asked: by the training, before its optimizer does,
        or by the writer, so long after the copy that a change under way would have been counted."""
        self.wait()
        with self._judging:
            if self._verdict is None:
                self._verdict = [tensor._version for tensor in self._tensors] == self._versions
                self._tensors = ()
            return self._verdict


# A state as it was at one step, taken apart and copied: what the training thread hands to the writer.

STATE = "state.json"


@dataclass(slots=True)
class StateCopy:
    """`progress` is as taken; the rest comes with the copy. `ready` is a mark in a GPU's queue behind it, or None."""

    progress: Mapping[str, Any]
    number: int = 0  # of this save among those of the process; the same on every rank
    form: dict[str, Any] = field(default_factory=dict)
    leaves: Mapping[str, Leaf] = field(default_factory=dict)
    copies: Mapping[str, Any] = field(default_factory=dict)  # in main memory
    ready: Any = None
    buffers: Any = None  # to be given back
    copying: Copying | None = None  # where the copy is made beside the training

    @property
    def step(self) -> int:
        return int(self.progress["steps"])

    @property
    def epoch(self) -> int:
        return int(self.progress["position"]["epoch"])

    @property
    def metrics(self) -> Mapping[str, float]:
        return dict(self.progress["metrics"])

    def settle(self) -> None:
        """Waits until the copies are whole."""
        if self.ready is not None:
            self.ready.synchronize()

    def intact(self) -> bool:
        """False if tensors were changed while they were copied. To be asked last, when a change has come to its end."""
        return self.copying is None or self.copying.good()

    def files(self) -> Iterator[tuple[str, list[memoryview], list[str]]]:
        """Name, contents in pieces, and the tensors of each file, as it will be on disk."""
        for file, names in format.pack(self.leaves).items():
            head = format.header({name: self.leaves[name] for name in names})
            pieces = [memoryview(head), *(view(self.copies[name], self.leaves[name]) for name in names)]
            yield file, pieces, names
        yield STATE, [memoryview(self._state())], []

    def _state(self) -> bytes:
        leaves = {name: [leaf.dtype, leaf.shape, leaf.like, leaf.detail] for name, leaf in self.leaves.items()}
        return json.dumps({"form": self.form, "leaves": leaves}, separators=(",", ":")).encode()


def digest(pieces: list[memoryview]) -> str:
    found = sha256()
    for piece in pieces:
        found.update(piece)
    return found.hexdigest()


def mark_of_gpu() -> Any:
    """A mark behind everything the GPU has been told so far; None without one."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    mark = torch.cuda.Event()
    mark.record()
    return mark


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
