"""How ranks come to save at the same step and to resume from the same one."""

from __future__ import annotations

import itertools
import sys
from typing import Any, Protocol

from stoker.checkpoint.surroundings import Surroundings

_numbers = itertools.count()  # every rank makes its checkpoints in the same order


class Agreement(Protocol):
    def save_now(self, step: int, *, wanted: bool) -> bool:
        """Whether this step is to be saved, the same on every rank. Called once per step; waits for nobody."""
        ...

    def any(self, wanted: bool) -> bool:
        """Whether any rank wants it. Waits for all."""
        ...

    def least(self, name: str | None) -> tuple[str, bool]:
        """The least of all names, and whether they are all the same. None: has no say. Waits for all."""
        ...


class Alone:
    def save_now(self, step: int, *, wanted: bool) -> bool:  # noqa: ARG002  # as its sibling
        return wanted

    def any(self, wanted: bool) -> bool:
        return wanted

    def least(self, name: str | None) -> tuple[str, bool]:
        return name or "", True


class Together:
    """Ranks that train in step. One that wants a save announces it for the step after, which no other can have finished
    before the announcement is there, because finishing a step takes all of them."""

    def __init__(self, distributed: Any) -> None:
        self._distributed = distributed
        self._store = distributed.distributed_c10d._get_default_store()
        self._key = f"stoker/save-at/{next(_numbers)}"
        self._store.set(self._key, "-1")
        distributed.barrier()

    def save_now(self, step: int, *, wanted: bool) -> bool:
        target = int(self._store.get(self._key))
        if wanted and target < step:
            self._store.set(self._key, str(step + 1))
        return target == step

    def any(self, wanted: bool) -> bool:
        return any(self._everyone(wanted))

    def least(self, name: str | None) -> tuple[str, bool]:
        names = {one for one in self._everyone(name) if one is not None}
        return min(names), len(names) == 1

    def _everyone(self, said: Any) -> list[Any]:
        everyone: list[Any] = [None] * self._distributed.get_world_size()
        self._distributed.all_gather_object(everyone, said)
        return everyone


def find(around: Surroundings) -> tuple[Agreement, Surroundings]:
    """Ranks are together if the script has started `torch.distributed`; otherwise each has a folder of its own."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        world, rank = distributed.get_world_size(), distributed.get_rank()
        if world > 1:
            local_world = min(around.local_world or world, world)
            local_rank = rank % local_world
            seat = around._replace(rank=rank, world=world, local_rank=local_rank, local_world=local_world)
            return Together(distributed), seat
    folder = f"{around.folder}/rank-{around.rank}" if around.rank else around.folder
    return Alone(), around._replace(folder=folder, rank=0, world=1, local_rank=0, local_world=1)
