"""A state as it was at one step, taken apart and copied: what the training thread hands to the writer."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from stoker.checkpoint import packing, safetensors
from stoker.checkpoint.copying import Copying
from stoker.checkpoint.leaves import Leaf, view

STATE = "state.json"


@dataclass(slots=True)
class Snapshot:
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
        for file, names in packing.pack(self.leaves).items():
            head = safetensors.header({name: self.leaves[name] for name in names})
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
