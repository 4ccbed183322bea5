"""A copy that is made while the training computes, of tensors that only an optimizer changes.

Between two steps of an optimizer its parameters and moments are only read, so they can be copied beside the next
forward and backward pass; the optimizer's next step waits for the rest. PyTorch counts the changes of every tensor,
which tells whether something else has changed one meanwhile: then the copy is not used.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any


class Copying:
    """Begins at once, on `thread`. Pairs are a place in main memory and a tensor of the same layout in main memory."""

    def __init__(self, pairs: Sequence[tuple[Any, Any]], thread: ThreadPoolExecutor) -> None:
        self._pairs = pairs
        self._versions = [tensor._version for _, tensor in pairs]
        self._verdict: bool | None = None
        self._judging = threading.Lock()
        self._done: Future[None] = thread.submit(self._copy)

    def wait(self) -> None:
        self._done.result()

    def good(self) -> bool:
        """Whether nothing had changed a tensor when this was first asked: by the training, before its optimizer does,
        or by the writer, so long after the copy that a change under way would have been counted."""
        self.wait()
        with self._judging:
            if self._verdict is None:
                self._verdict = [tensor._version for _, tensor in self._pairs] == self._versions
                self._pairs = ()
            return self._verdict

    def _copy(self) -> None:
        for room, tensor in self._pairs:
            ctypes.memmove(room.data_ptr(), tensor.data_ptr(), tensor.nbytes)
