"""Finds the newest checkpoint that all ranks can go on from, and makes sure that it was made by code like this."""

from __future__ import annotations

from collections.abc import Mapping

from stoker.checkpoint import fit
from stoker.checkpoint.manifest import Manifest
from stoker.checkpoint.parts import Part
from stoker.checkpoint.ranks import Ranks
from stoker.checkpoint.reading import Opened, OpenedPart, open_as_is, rank_folder
from stoker.checkpoint.shelf import Shelf, say
from stoker.checkpoint.snapshot import STATE
from stoker.checkpoint.structure import Flattener
from stoker.checkpoint.surroundings import Surroundings


def find(shelf: Shelf, ranks: Ranks, around: Surroundings) -> tuple[OpenedPart, bool] | None:
    """What this rank goes on from, and whether it is its own: otherwise it is the first rank's, for want of one."""
    opened = _agreed(shelf, ranks, around)
    if opened is None:
        return None
    if own := opened.part(around.rank):
        return own, True
    first = opened.part(0)
    if first is not None:
        saved_by = f"{opened.path.name} was saved by {opened.manifest.ranks} ranks"
        say(f"{saved_by}: rank {around.rank} goes on from the beginning of the epoch, in an order of its own")
    return (first, False) if first is not None else None


def check(stored: OpenedPart, parts: Mapping[str, Part]) -> None:
    """Raises DoesNotFit, naming the first thing that differs, before anything of the training is changed."""
    name = stored.opened.path.name
    fit.check_names(name, stored.form["parts"], parts)
    for part_name, part in parts.items():
        flat = Flattener()
        present = flat.flatten(part.state(), part_name)
        fit.check_groups(name, part_name, stored.form["parts"][part_name], present)
        fit.check_tensors(name, part_name, stored.leaves, flat.leaves, strict=part.in_place)


def _agreed(shelf: Shelf, ranks: Ranks, around: Surroundings) -> Opened | None:
    """The newest good checkpoint that every node has. The first rank of a node verifies it for the others."""
    leads = around.local_rank == 0
    if leads:
        shelf.sweep()

    def fits(manifest: Manifest) -> bool:
        """Of as many ranks as now, what another node saved is no use here: its own part of it was never made safe."""
        return rank_folder(around.rank if manifest.ranks == around.world else 0) + STATE in manifest.files

    found: Opened | None = None
    least, same = None, False
    while not same:
        if leads:
            found = shelf.newest(least, fits)
        least, same = ranks.least((found.path.name if found else "") if leads else None)
    if leads and not least and shelf.names():
        say("there is no checkpoint that all ranks can go on from: the training begins anew")
    return found if leads or not least else open_as_is(shelf.folder / least)
