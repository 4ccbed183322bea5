"""How ranks come to save at the same step and to resume from the same one."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

from stoker.checkpoint.surroundings import Surroundings


class Ranks(Protocol):
    def save_now(self, step: int, *, wanted: bool) -> bool:
        """Whether this step is to be saved, the same on every rank. Called once per step."""
        ...

    def common(self, names: Sequence[str]) -> list[str]:
        """Those checkpoints that every rank can see."""
        ...


class Alone:
    def save_now(self, step: int, *, wanted: bool) -> bool:  # noqa: ARG002  # as its sibling
        return wanted

    def common(self, names: Sequence[str]) -> list[str]:
        return list(names)


class Together:
    """Ranks that train in step. One that wants a save announces it for the step after, which no other can have finished
    before the announcement is there, because finishing a step takes all of them."""

    def __init__(self, distributed: Any) -> None:
        self._distributed = distributed
        self._store = distributed.distributed_c10d._get_default_store()
        self._announced = -1

    def save_now(self, step: int, *, wanted: bool) -> bool:
        due = self._target()
        if wanted and due <= step:
            self._store.set(_KEY, str(step + 1))
        return due == step

    def common(self, names: Sequence[str]) -> list[str]:
        everyone: list[Any] = [None] * self._distributed.get_world_size()
        self._distributed.all_gather_object(everyone, list(names))
        return [name for name in names if all(name in theirs for theirs in everyone)]

    def _target(self) -> int:
        return int(self._store.get(_KEY)) if self._store.check([_KEY]) else -1


_KEY = "stoker/save-at"


def find(around: Surroundings) -> tuple[Ranks, Surroundings]:
    """Ranks are together if the script has started `torch.distributed`; otherwise each has a folder of its own."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        world, rank = distributed.get_world_size(), distributed.get_rank()
        if world > 1:
            local_world = min(around.local_world if around.local_world > 1 else world, world)
            seat = replace(around, rank=rank, world=world, local_rank=rank % local_world, local_world=local_world)
            return Together(distributed), seat
    folder = around.folder / f"rank-{around.rank}" if around.rank else around.folder
    return Alone(), replace(around, folder=folder, rank=0, world=1, local_rank=0, local_world=1)
