"""Finds the newest checkpoint that all ranks can resume from, and how ranks agree on a step."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping
from typing import Any, Protocol

from stoker.checkpoint.read.format import CheckpointManifest
from stoker.checkpoint.read.reading import OpenCheckpoint, OpenedPart, open_as_is, rank_folder
from stoker.checkpoint.read.shelf import CheckpointFolder, say
from stoker.checkpoint.save.snapshot import STATE
from stoker.checkpoint.state.parts import StatePart
from stoker.checkpoint.state.structure import Flattener, Leaf
from stoker.checkpoint.surroundings import Surroundings
from stoker.errors import DoesNotFit


def find(shelf: CheckpointFolder, ranks: Agreement, around: Surroundings) -> tuple[OpenedPart, bool] | None:
    """What this rank resumes from, and whether it is its own: of another number of ranks, all take the first one's."""
    opened = _agreed(shelf, ranks, around)
    if opened is None:
        return None
    exact = opened.manifest.ranks == around.world
    part = opened.part(around.rank if exact else 0)
    return (part, exact) if part else None


def check(stored: OpenedPart, parts: Mapping[str, StatePart]) -> None:
    """Raises DoesNotFit, naming the first thing that differs, before anything of the training is changed."""
    name = stored.opened.path.name
    check_names(name, stored.form["parts"], parts)
    for part_name, part in parts.items():
        flat = Flattener()
        present = flat.flatten(part.state(), part_name)
        check_groups(name, part_name, stored.form["parts"][part_name], present)
        check_tensors(name, part_name, stored.leaves, flat.leaves, strict=part.in_place)


def _agreed(shelf: CheckpointFolder, ranks: Agreement, around: Surroundings) -> OpenCheckpoint | None:
    """The newest good checkpoint that every node has. The first rank of a node verifies it for the others."""
    leads = around.local_rank == 0
    if leads:
        shelf.sweep()

    def fits(manifest: CheckpointManifest) -> bool:
        """With as many ranks as now, another node's save is useless: this node's part of it was never committed."""
        return rank_folder(around.rank if manifest.ranks == around.world else 0) + STATE in manifest.files

    found: OpenCheckpoint | None = None
    least, same = None, False
    while not same:
        if leads:
            found = shelf.newest(least, fits)
        least, same = ranks.least((found.path.name if found else "") if leads else None)
    if leads and not least and shelf.names():
        say("no checkpoint is complete on all ranks: training starts over")
    return found if leads or not least else open_as_is(shelf.folder / least)


# Whether a checkpoint was made by code like this: asked before anything is loaded.


def check_names(name: str, stored: Mapping[str, Any], present: Mapping[str, Any]) -> None:
    """Both sides have to be made of the same parts."""
    for missing in [part for part in stored if part not in present]:
        raise _misfit(name, f"it contains `{missing}`, which this code does not pass to `Checkpoint(…)`")
    for added in [part for part in present if part not in stored]:
        raise _misfit(name, f"it lacks `{added}`, which this code passes to `Checkpoint(…)`")


def check_tensors(
    name: str, part: str, stored: Mapping[str, Leaf], present: Mapping[str, Leaf], *, strict: bool
) -> None:
    """Names the first tensor that differs. Unless `strict`, a tensor may be on one side only, as in an optimizer that
    has not made a step."""
    ours = {tensor: leaf for tensor, leaf in stored.items() if tensor.startswith(f"{part}/") or tensor == part}
    for tensor, leaf in present.items():
        there = ours.get(tensor)
        if there is None and strict:
            raise _misfit(name, f"`{tensor}` is {leaf} in this code and not in the checkpoint")
        if there is not None and (there.shape, there.dtype) != (leaf.shape, leaf.dtype):
            raise _misfit(name, f"`{tensor}` is {there} in the checkpoint and {leaf} in this code")
    if strict and (gone := [tensor for tensor in ours if tensor not in present]):
        raise _misfit(name, f"`{gone[0]}` is {ours[gone[0]]} in the checkpoint and not in this code")


def check_groups(name: str, part: str, stored: Any, present: Any) -> None:
    """An optimizer's groups of parameters, which have no tensors to compare before its first step."""
    if not all(isinstance(form, dict) and isinstance(form.get("param_groups"), list) for form in (stored, present)):
        return
    sizes = [[len(group.get("params", ())) for group in form["param_groups"]] for form in (stored, present)]
    if sizes[0] != sizes[1]:
        raise _misfit(
            name, f"`{part}` has groups of {sizes[0]} parameters in the checkpoint and {sizes[1]} in this code"
        )


def _misfit(name: str, reason: str) -> DoesNotFit:
    return DoesNotFit(
        f"the checkpoint {name} does not match this code: {reason}",
        hint="to start over, move the checkpoints away or set `Checkpoint(folder=…)` to another folder; to keep the "
        "weights that fit, use `Checkpoint.load_weights(…)`",
    )


_numbers = itertools.count()  # every rank makes its checkpoints in the same order


class Agreement(Protocol):
    def save_now(self, step: int, *, wanted: bool) -> bool:
        """Whether this step is to be saved, the same on every rank. Called once per step; does not wait."""
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


def find_ranks(around: Surroundings) -> tuple[Agreement, Surroundings]:
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
    full_world = around.full_world if around.world == 1 else None  # others train beside it, not with it
    seat = around._replace(folder=folder, rank=0, world=1, local_rank=0, local_world=1, full_world=full_world)
    return Alone(), seat
