"""A copy that is made while the training computes, of a state that only optimizers change.

Between two steps of its optimizers a model's parameters and the optimizers' moments are only read, so they can be taken
apart and copied beside the next forward and backward pass; the optimizer's next step waits for the rest. PyTorch counts
the changes of every tensor, which tells whether something else has changed one meanwhile: then the copy is not used.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from stoker.checkpoint.read import format
from stoker.checkpoint.state.leaves import Leaf, view


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
