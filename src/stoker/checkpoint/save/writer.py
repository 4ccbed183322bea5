"""A thread beside the training. The thread that writes. The training hands over a snapshot and continues; a newer one
may replace it."""

from __future__ import annotations

import atexit
import ctypes
import errno
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from stoker.checkpoint.read.shelf import say
from stoker.checkpoint.save.snapshot import Dropped, StateCopy, WriteOrders
from stoker.checkpoint.state.structure import Leaf, torch_dtype

Job = Callable[[], None]
Jobs = SimpleQueue[Job | None]

_at_work: dict[threading.Thread, Jobs] = {}


class SaveThread:
    """Does what it is handed, one after the other; handing it something costs a few microseconds. Its thread ends with
    this object, once everything is done. What is handed over is kept alive until then, and nothing else."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: Jobs = SimpleQueue()
        self._started = False

    def hand(self, job: Job) -> None:
        if not self._started:
            try:
                _start(self._name, self._jobs)
            except RuntimeError:  # the interpreter is about to end and starts no more of them
                job()
                return
            self._started = True
            weakref.finalize(self, self._jobs.put, None).atexit = False
        self._jobs.put(job)


def _start(name: str, jobs: Jobs) -> None:
    thread = threading.Thread(target=_work, args=(jobs,), name=name, daemon=True)
    _at_work[thread] = jobs
    try:
        thread.start()
    except RuntimeError:
        del _at_work[thread]
        raise


def _work(jobs: Jobs) -> None:
    try:
        while (job := jobs.get()) is not None:
            job()
            del job  # otherwise it would be kept alive until the next job
    finally:
        _at_work.pop(threading.current_thread(), None)


@atexit.register  # earlier than any checkpoint's own: so it is called after them
def _end_all() -> None:
    """Python stops a daemon thread wherever it is. In the midst of PyTorch, be it to free the memory of a copy, that
    aborts the whole process, whose training has succeeded."""
    for thread, jobs in list(_at_work.items()):
        jobs.put(None)
        thread.join()


Save = Callable[[StateCopy, WriteOrders], Path | None]  # puts a snapshot on the shelf


class Writer:
    """At most two copies of the state exist: one being written, one waiting. The second is made only if needed."""

    def __init__(self, save: Save) -> None:
        self._save = save
        self._changed = threading.Condition()
        self._spare: list[Buffers] = [Buffers()]
        self._waiting: StateCopy | None = None
        self._writing: StateCopy | None = None
        self._hurry = False
        self._worker = SaveThread("stoker-checkpoint")
        self._at_work = False
        self.trouble: str | None = None
        self.written_s = 0.0
        self.last: Path | None = None

    @property
    def idle(self) -> bool:
        return self._waiting is None and self._writing is None

    def take_buffers(self) -> Buffers:
        """Never waits: a save that has not started yet is dropped for its memory."""
        with self._changed:
            if self._waiting is not None:
                dropped, self._waiting = self._waiting, None
                assert isinstance(dropped.buffers, Buffers)
                return dropped.buffers
            return self._spare.pop() if self._spare else Buffers()

    def give_back(self, buffers: Buffers) -> None:
        with self._changed:
            self._spare.append(buffers)

    def prepare(self, leaves: Mapping[str, Leaf], values: Mapping[str, Any]) -> None:
        """Gets memory for a state like this one, in the background. A save that comes before makes its own."""
        with self._changed:
            if not self._spare:
                return
            buffers = self._spare.pop()

        def work() -> None:
            buffers.prepare(leaves, values)
            self.give_back(buffers)

        SaveThread("stoker-buffers").hand(work)

    def submit(self, snapshot: StateCopy, *, hurry: bool = False) -> None:
        """To be written once `begin` is called. With `hurry` a save under way is given up for this one, and all cores
        work on it."""
        with self._changed:
            self._waiting = snapshot
            self._hurry = hurry

    def begin(self) -> None:
        with self._changed:
            if self._at_work:
                return
            self._at_work = True
        self._worker.hand(self._work)

    def finish(self, timeout_s: float | None = None) -> bool:
        """Waits until every submitted save is complete, dropped or failed."""
        with self._changed:
            return self._changed.wait_for(lambda: self.idle, timeout_s)

    def _work(self) -> None:
        while (snapshot := self._next()) is not None:
            self._write(snapshot)
            with self._changed:
                self._writing = None
                self._spare.append(snapshot.buffers)
                self._changed.notify_all()

    def _next(self) -> StateCopy | None:
        with self._changed:
            self._writing, self._waiting = self._waiting, None
            self._at_work = self._writing is not None
            return self._writing

    def _write(self, snapshot: StateCopy) -> None:
        begun = time.monotonic()
        try:
            made = self._save(snapshot, WriteOrders(4 if self._hurry else 1, self._overtaken, self._newer_waits))
        except Dropped:
            return
        except Exception as error:  # the training must continue after any error
            reason = "the disk is full" if isinstance(error, OSError) and error.errno == errno.ENOSPC else repr(error)
            self.trouble = f"step {snapshot.step} was not saved: {reason}"
            say(f"{self.trouble}; training continues, and the next save retries")
            return
        self.trouble = None
        self.last = made
        self.written_s = time.monotonic() - begun

    def _newer_waits(self) -> bool:
        return self._waiting is not None

    def _overtaken(self) -> bool:
        return self._hurry and self._newer_waits()


# Memory that one copy of a state is made into, kept from save to save: fresh memory costs more than the copy.

_SMALL_BYTES = 1 << 17  # PyTorch copies these by one thread


class Buffers:
    """Room for one state. Whoever has called `copy` owns what it returned until it gives the buffers back."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[Leaf, Any]] = {}

    def prepare(self, leaves: Mapping[str, Leaf], values: Mapping[str, Any]) -> None:
        """Gets the memory for values such as these and touches it once, so that the first save need not."""
        for name, leaf in leaves.items():
            if leaf.like == "torch":
                self._room(name, leaf, on_gpu=values[name].is_cuda).zero_()

    def copy(self, leaves: Mapping[str, Leaf], values: Mapping[str, Any]) -> dict[str, Any]:
        """The values as they are now, in memory of their own. Copies from a GPU may still be under way."""
        copies: dict[str, Any] = {}
        rooms: list[Any] = []
        tensors: list[Any] = []
        for name, leaf in leaves.items():
            value = values[name]
            if leaf.like == "torch":
                copies[name] = room = self._room(name, leaf, on_gpu=value.is_cuda)
                rooms.append(room)
                tensors.append(value)
            elif leaf.like == "bytes":
                copies[name] = value
            elif leaf.like == "numpy":
                copies[name] = value.copy(order="C")
            else:
                copies[name] = bytes(memoryview(value).cast("B"))
        if tensors:
            _copy_all(rooms, tensors)
        return copies

    def _room(self, name: str, leaf: Leaf, *, on_gpu: bool) -> Any:
        held = self._held.get(name)
        if held is not None and (held[0] is leaf or held[0] == leaf):
            return held[1]
        torch = sys.modules["torch"]
        room = torch.empty(leaf.shape, dtype=torch_dtype(leaf), pin_memory=on_gpu)
        if leaf.detail:
            room = room.as_strided(leaf.shape, leaf.detail)
        self._held[name] = (leaf, room)
        return room


def _copy_all(rooms: list[Any], tensors: list[Any]) -> None:
    """By `memmove` where memory is alike: one core can fill the bus, and threads that wait for each other cannot. Small
    ones go in one call, so that the copier need not ask for Python's lock before each."""
    torch = sys.modules["torch"]
    rest: list[tuple[Any, Any]] = []
    small: list[tuple[Any, Any]] = []
    for room, tensor in zip(rooms, tensors, strict=True):
        if not tensor.is_cpu or tensor.stride() != room.stride() or not tensor.nbytes:
            rest.append((room, tensor))
        elif tensor.nbytes < _SMALL_BYTES:
            small.append((room, tensor))
        else:
            ctypes.memmove(room.data_ptr(), tensor.data_ptr(), tensor.nbytes)
    with torch.no_grad():
        if small:
            torch._foreach_copy_([room for room, _ in small], [tensor for _, tensor in small])
        for room, tensor in rest:
            room.copy_(tensor, non_blocking=True)
