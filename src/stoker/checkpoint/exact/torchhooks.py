"""PyTorch under the hook: saves, loads, loaders, backward passes, and draws of numbers."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from types import ModuleType
from typing import Any

from stoker.checkpoint.exact.session import Session

_DRAWS = ("randint", "randperm")  # what batches are drawn with
# Where ranks meet: each is an event that all of them come by.
_MEETINGS = (
    *("barrier", "monitored_barrier", "all_reduce", "reduce", "broadcast", "broadcast_object_list", "gather"),
    *("all_gather", "all_gather_object", "all_gather_into_tensor", "gather_object", "scatter", "reduce_scatter"),
    *("reduce_scatter_tensor", "all_to_all", "all_to_all_single", "destroy_process_group"),
)


def change(torch: ModuleType, session: Session) -> None:
    _save_and_load(torch, session)
    _loaders(torch.utils.data, session)
    _backward(torch, session)
    if torch.distributed.is_available():
        _ranks(torch, session)
    for name in _DRAWS:
        original = getattr(torch, name)
        before_draw(torch, name, session)
        _known_to_script(torch, original, getattr(torch, name))


def path_of(target: Any) -> tuple[str | None, bool]:
    """Where something is saved to or loaded from, None if that is not a file; and whether it is given by its name."""
    if isinstance(target, str | os.PathLike):
        path = os.fspath(target)
        return (path if isinstance(path, str) and "://" not in path else None), True
    name = getattr(target, "name", None)
    return (name if isinstance(name, str) and Path(name).is_file() else None), False


def before_draw(holder: Any, name: str, session: Session) -> None:
    original = getattr(holder, name, None)
    if original is None:
        return

    @wraps(original)
    def draw(*given: Any, **more: Any) -> Any:
        if more.get("generator") is None and not _is_compiling():
            session.drawing()
        return original(*given, **more)

    setattr(holder, name, draw)


def _is_compiling() -> bool:
    """`torch.compile` reads this function and must find nothing of ours in what it compiles."""
    torch = sys.modules.get("torch")
    compiler = getattr(torch, "compiler", None)
    return bool(compiler is not None and hasattr(compiler, "is_compiling") and compiler.is_compiling())


def _known_to_script(torch: Any, original: Any, ours: Any) -> None:
    """TorchScript knows PyTorch's functions by their identity."""
    builtins = getattr(getattr(torch, "jit", None), "_builtins", None)
    if builtins is not None and (name := builtins._find_builtin(original)):
        builtins._register_builtin(ours, name)


def _save_and_load(torch: ModuleType, session: Session) -> None:
    save, load = torch.save, torch.load

    @wraps(save)
    def saving(obj: Any, f: Any, *given: Any, **more: Any) -> Any:
        path, closed = path_of(f)
        return session.saving(path, lambda: save(obj, f, *given, **more), closed=closed)

    @wraps(load)
    def loading(f: Any, *given: Any, **more: Any) -> Any:
        path, _ = path_of(f)
        return session.loading(path, lambda: load(f, *given, **more))

    holders: list[Any] = [torch, torch.serialization]
    for holder in holders:
        holder.save, holder.load = saving, loading


def _loaders(data: ModuleType, session: Session) -> None:
    loader = data.DataLoader
    make, begin = loader.__init__, loader.__iter__
    iterator = data.dataloader._BaseDataLoaderIter
    fetch = iterator.__next__

    @wraps(make)
    def making(self: Any, *given: Any, **more: Any) -> None:
        make(self, *given, **more)
        if session.active:
            session.loaders.add(self)

    @wraps(begin)
    def beginning(self: Any) -> Any:
        return session.passing(self, lambda: begin(self))

    @wraps(fetch)
    def fetching(self: Any) -> Any:
        session.fetching(self)
        return fetch(self)

    loader.__init__, loader.__iter__, iterator.__next__ = making, beginning, fetching


def _backward(torch: ModuleType, session: Session) -> None:
    original = torch.Tensor.backward

    @wraps(original)
    def backward(self: Any, *given: Any, **more: Any) -> Any:
        result = original(self, *given, **more)
        if not _is_compiling():
            session.worked()
        return result

    torch.Tensor.backward = backward


def _ranks(torch: ModuleType, session: Session) -> None:
    from stoker.checkpoint.exact.gradients import Gradients  # imports much that a process without PyTorch does not need

    session.gradients = Gradients()
    distributed: Any = torch.distributed
    holders: list[Any] = [distributed, distributed.distributed_c10d]
    for name in _MEETINGS:
        _before(holders, name, lambda: session.event("meeting"))
    _after(holders, "init_process_group", session.joining)
    _wrappers(torch.nn.parallel.DistributedDataParallel, session)


def _wrappers(kind: Any, session: Session) -> None:
    make, call = kind.__init__, kind.forward

    @wraps(make)
    def making(self: Any, *given: Any, **more: Any) -> None:
        make(self, *given, **more)
        session.wrapped(self)

    @wraps(call)
    def calling(self: Any, *given: Any, **more: Any) -> Any:
        if not _is_compiling():
            session.calling(self)
        return call(self, *given, **more)

    kind.__init__, kind.forward = making, calling


def _before(holders: list[Any], name: str, call: Callable[[], object]) -> None:
    original = getattr(holders[0], name, None)
    if original is None:
        return

    @wraps(original)
    def meet(*given: Any, **more: Any) -> Any:
        if not _is_compiling():
            call()
        return original(*given, **more)

    for holder in holders:
        setattr(holder, name, meet)


def _after(holders: list[Any], name: str, call: Callable[[], object]) -> None:
    original = getattr(holders[0], name)

    @wraps(original)
    def joined(*given: Any, **more: Any) -> Any:
        result = original(*given, **more)
        call()
        return result

    for holder in holders:
        setattr(holder, name, joined)
