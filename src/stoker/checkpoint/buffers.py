"""Memory that one copy of a state is made into, kept from save to save: fresh memory costs more than the copy."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Mapping
from typing import Any

from stoker.checkpoint.leaves import Leaf, torch_dtype

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
