"""A copy that is made while the training computes, of a state that only optimizers change.

Between two steps of its optimizers a model's parameters and the optimizers' moments are only read, so they can be taken
apart and copied beside the next forward and backward pass; the optimizer's next step waits for the rest. PyTorch counts
the changes of every tensor, which tells whether something else has changed one meanwhile: then the copy is not used.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any


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
