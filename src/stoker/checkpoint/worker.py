"""A thread beside the training."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue

Job = Callable[[], None]


class Worker:
    """Does what it is handed, one after the other; handing it something costs a few microseconds. Its thread ends with
    this object, once everything is done. What is handed over is kept alive until then, and nothing else."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._started = False

    def hand(self, job: Job) -> None:
        if not self._started:
            try:
                threading.Thread(target=_work, args=(self._jobs,), name=self._name, daemon=True).start()
            except RuntimeError:  # the interpreter is about to end and starts no more of them
                job()
                return
            self._started = True
            weakref.finalize(self, self._jobs.put, None).atexit = False
        self._jobs.put(job)


def _work(jobs: SimpleQueue[Job | None]) -> None:
    while (job := jobs.get()) is not None:
        job()
        del job  # or it would be kept until the next one comes
