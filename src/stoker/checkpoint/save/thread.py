"""A thread beside the training."""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue

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
            del job  # or it would be kept until the next one comes
    finally:
        _at_work.pop(threading.current_thread(), None)


@atexit.register  # earlier than any checkpoint's own: so it is called after them
def _end_all() -> None:
    """Python stops a daemon thread wherever it is. In the midst of PyTorch, be it to free the memory of a copy, that
    aborts the whole process, whose training has succeeded."""
    for thread, jobs in list(_at_work.items()):
        jobs.put(None)
        thread.join()
