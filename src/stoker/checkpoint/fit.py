"""Whether a checkpoint was made by code like this: asked before anything is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stoker.checkpoint.leaves import Leaf
from stoker.errors import DoesNotFit


def check_names(name: str, stored: Mapping[str, Any], present: Mapping[str, Any]) -> None:
    """Both sides have to be made of the same parts."""
    for missing in [part for part in stored if part not in present]:
        raise _misfit(name, f"it holds `{missing}`, which this code does not give to `Checkpoint(…)`")
    for added in [part for part in present if part not in stored]:
        raise _misfit(name, f"it does not hold `{added}`, which this code gives to `Checkpoint(…)`")


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
        f"the checkpoint {name} was made by other code: {reason}",
        hint="to start anew, move the checkpoints away or give `Checkpoint(folder=…)` another folder; to keep the "
        "weights that fit, use `Checkpoint.load_weights(…)`",
    )
