"""Finds the DistributedDataParallel wrappers that train what a checkpoint holds."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Iterator
from typing import Any


def given(things: Iterable[Any]) -> list[Any]:
    """Those among `things` or anywhere inside their modules, in an order that is the same on every rank."""
    kind = _kind()
    if kind is None:
        return []
    module = _module()
    inside = (one for thing in things if isinstance(thing, module) for one in thing.modules())
    return _once(one for one in inside if isinstance(one, kind))


def elsewhere(things: Iterable[Any], known: list[Any]) -> list[Any]:
    """Those that nobody gave us: a script may hand over the bare module, or an object of its own that holds a model.

    Looks through the memory of the process if `things` train a parameter that no known wrapper has. Every rank finds
    the same ones, in the same order.
    """
    kind = _kind()
    if kind is None:
        return []
    covered = {id(parameter) for wrapper in known for parameter in wrapper.parameters()}
    missing = {id(parameter) for thing in things for parameter in _trained(thing)} - covered
    if not missing:
        return []
    gc.collect()  # a wrapper that the script has dropped may be there on one rank and gone on another
    living = [one for one in gc.get_objects() if issubclass(type(one), kind)]
    wanted = [one for one in living if any(id(parameter) in missing for parameter in one.parameters())]
    return sorted(wanted, key=signature)


def signature(wrapper: Any) -> str:
    """The same in the process that resumes, and for wrappers that could stand in for each other."""
    trained = (f"{name} {tuple(one.shape)}" for name, one in wrapper.module.named_parameters() if one.requires_grad)
    return f"{type(wrapper.module).__name__}: {', '.join(trained)}"


def _trained(thing: Any) -> Iterator[Any]:
    module = _module()
    if isinstance(thing, module):
        yield from (one for one in thing.parameters() if one.requires_grad)
    for group in getattr(thing, "param_groups", ()):
        yield from (one for one in group["params"] if one.requires_grad)


def _once(found: Iterable[Any]) -> list[Any]:
    return list({id(one): one for one in found}.values())


def _kind() -> Any:
    """None where there are no ranks to add gradients with."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return sys.modules["torch.nn.parallel"].DistributedDataParallel


def _module() -> Any:
    return sys.modules["torch.nn"].Module
