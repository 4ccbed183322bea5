"""Which tensors stay as they are until an optimizer makes its next step, so that they can be copied until then."""

from __future__ import annotations

import sys
from collections.abc import Iterable, MutableMapping
from typing import Any

from stoker.checkpoint.spreading import is_spread

ASIDE_BYTES = 4 << 20  # what changes at other times, such as running means, is small, or all is copied at once

Watched = dict[int, Any]  # tensors by identity


def changed_by(optimizers: Iterable[Any]) -> Watched | None:
    """Their parameters and moments; None where some are not in main memory, or their changes are not counted."""
    torch = sys.modules["torch"]
    tensor, usual = torch.Tensor, (torch.Tensor, torch.nn.Parameter)  # which is quicker to ask than what is rare
    found: Watched = {}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            found |= {id(one): one for one in group["params"]}
        for slot in optimizer.state.values():
            found |= {id(one): one for one in slot.values() if isinstance(one, tensor)}
    here = all(one.is_cpu and (type(one) in usual or not is_spread(one)) for one in found.values())
    return found if here else None


def hold(state: MutableMapping[str, Any], watched: Watched) -> bool:
    """Sees to it that the state of a module or an optimizer, as just taken, stays so until the next step.

    A module's buffers are replaced by copies; parameters that no optimizer has are watched, too. False where that
    cannot be.
    """
    torch = sys.modules["torch"]
    if state.keys() == {"state", "param_groups"}:
        settings = (value for group in state["param_groups"] for value in group.values())
        return not any(isinstance(value, torch.Tensor) for value in settings)
    aside_bytes = 0
    for name, value in state.items():
        if id(value) in watched:
            continue
        if not isinstance(value, torch.Tensor) or not value.is_cpu:
            return False
        if isinstance(value, torch.nn.Parameter):
            watched[id(value)] = value
            continue
        aside_bytes += value.nbytes
        if aside_bytes > ASIDE_BYTES:
            return False
        state[name] = value.detach().clone()
    return True
