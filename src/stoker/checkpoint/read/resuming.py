"""Finds the newest checkpoint that all ranks can go on from, and makes sure that it was made by code like this."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stoker.checkpoint.ranks.agreement import Agreement
from stoker.checkpoint.read.manifests import CheckpointManifest
from stoker.checkpoint.read.reading import OpenCheckpoint, OpenedPart, open_as_is, rank_folder
from stoker.checkpoint.read.shelf import CheckpointFolder, say
from stoker.checkpoint.save.snapshot import STATE
from stoker.checkpoint.state.leaves import Leaf
from stoker.checkpoint.state.parts import StatePart
from stoker.checkpoint.state.structure import Flattener
from stoker.checkpoint.surroundings import Surroundings
from stoker.errors import DoesNotFit


def find(shelf: CheckpointFolder, ranks: Agreement, around: Surroundings) -> tuple[OpenedPart, bool] | None:
    """What this rank goes on from, and whether it is its own: otherwise it is the first rank's, for want of one."""
    opened = _agreed(shelf, ranks, around)
    if opened is None:
        return None
    if own := opened.part(around.rank):
        return own, True
    first = opened.part(0)
    if first is not None:
        saved_by = f"{opened.path.name} was saved by {opened.manifest.ranks} ranks"
        say(f"{saved_by}: rank {around.rank} resumes at the start of the epoch, in its own order")
    return (first, False) if first is not None else None


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
        """Of as many ranks as now, what another node saved is no use here: its own part of it was never made safe."""
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
