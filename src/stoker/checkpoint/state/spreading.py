"""Tensors that are spread over ranks, as `fully_shard` makes them: every rank saves its part of each.

A rank puts its part back where it has the same ranks around it. Whoever has none of them can put the parts together.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from stoker.errors import DoesNotFit

Words = dict[str, Any]  # what it takes to make a tensor of its part again, as JSON
Whole = Callable[[Words, Any], Any]  # of the words and the part of this rank, the tensor

_meshes: dict[str, Any] = {}  # those that tensors of this process are spread over, by what is said of them


def is_spread(value: Any) -> bool:
    tensors = sys.modules.get("torch.distributed.tensor")
    return tensors is not None and isinstance(value, tensors.DTensor)


def take_apart(value: Any) -> tuple[Any, Words]:
    """The part of this rank, which is the very memory that training changes. A TypeError says why there is none."""
    mesh = _describe(value.device_mesh)
    _meshes[json.dumps(mesh)] = value.device_mesh
    words = {
        "mesh": mesh,
        "placements": [_dimension(one) for one in value.placements],
        "shape": list(value.shape),
        "stride": list(value.stride()),
    }
    return value._local_tensor, words


def on_this_rank(words: Words, part: Any) -> Any:
    """The tensor as it was, of which this rank has a part."""
    tensors = import_module("torch.distributed.tensor")
    mesh = _meshes.get(json.dumps(words["mesh"]))
    if mesh is None:
        raise DoesNotFit(
            "a tensor of the checkpoint is sharded over ranks differently than all tensors of this code",
            hint="resume with the same number of ranks, and shard the model before you create the `Checkpoint`",
        )
    placements = [tensors.Replicate() if dim is None else tensors.Shard(dim) for dim in words["placements"]]
    shape, stride = sys.modules["torch"].Size(words["shape"]), tuple(words["stride"])
    return tensors.DTensor.from_local(part, mesh, placements, run_check=False, shape=shape, stride=stride)


def together(words: Words, parts: list[Any]) -> Any:
    """The tensor, of the parts of all ranks in their order."""
    torch = import_module("torch")

    def join(ranks: Any, placements: list[int | None]) -> Any:
        """Of the ranks of a mesh, or of a row of it: it was cut along the first way first."""
        if not placements:
            return parts[ranks]
        dim, *within = placements
        if dim is None:
            return join(ranks[0], within)
        return torch.cat([join(row, within) for row in ranks], dim)

    return join(words["mesh"]["ranks"], words["placements"]).reshape(words["shape"])


def _describe(mesh: Any) -> Words:
    names = mesh.mesh_dim_names
    return {"device": mesh.device_type, "ranks": mesh.mesh.tolist(), "names": list(names) if names else None}


def _dimension(placement: Any) -> int | None:
    """Along which one it is cut; None where every rank has all of it."""
    kind = type(placement).__name__
    if kind == "Replicate":
        return None
    if kind != "Shard":
        raise TypeError(f"a tensor that is sharded over ranks as {placement}")
    return int(placement.dim)
