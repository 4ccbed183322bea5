"""The things a checkpoint is made of: whatever can say its state and take it back."""

from __future__ import annotations

import random
import sys
from typing import Any, Protocol

from stoker.errors import NotStorable


class StatePart(Protocol):
    """`in_place` says that `load` copies what it is given, so that it may be given memory that goes away. `steady` says
    that the state changes in the steps of an optimizer, and a module's buffers besides, but nothing else."""

    in_place: bool
    steady: bool

    def state(self) -> Any: ...

    def load(self, state: Any) -> None: ...


def part_for(name: str, thing: Any) -> StatePart:
    """A wrapped model (data parallel, compiled) is taken out of its wrapping, so that names are the same without it."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(thing, torch.nn.Module):
        return _Module(unwrapped(thing))
    if torch is not None and isinstance(thing, torch.Generator):
        return _Generator(thing)
    if isinstance(thing, random.Random):
        return _PythonRandom(thing)
    if hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict"):
        return _Stateful(thing)
    if hasattr(getattr(thing, "bit_generator", None), "state"):
        return _NumpyGenerator(thing)
    raise NotStorable(
        f"`{name}` has no `state_dict` and `load_state_dict`: it is of type {type(thing).__name__}",
        hint=f'for a plain value write `state["{name}"] = …` instead',
    )


def tells_of_steps(thing: Any) -> bool:
    """It is an optimizer that can be asked to call back before each of its steps."""
    return hasattr(thing, "register_step_pre_hook")


def unwrapped(module: Any) -> Any:
    while True:
        if hasattr(module, "_orig_mod"):
            module = module._orig_mod
        elif type(module).__name__ in ("DistributedDataParallel", "DataParallel"):
            module = module.module
        else:
            return module


class _Stateful:
    in_place = False

    def __init__(self, thing: Any) -> None:
        self._thing = thing
        self.steady = tells_of_steps(thing)

    def state(self) -> Any:
        return self._thing.state_dict()

    def load(self, state: Any) -> None:
        self._thing.load_state_dict(state)


class _Module(_Stateful):
    in_place = True

    def __init__(self, thing: Any) -> None:
        super().__init__(thing)
        self.steady = True

    def state(self) -> Any:
        return self._thing.state_dict(keep_vars=True)  # the very parameters, so that they are known again


class _Generator:
    in_place = True
    steady = False

    def __init__(self, generator: Any) -> None:
        self._generator = generator

    def state(self) -> Any:
        return self._generator.get_state()

    def load(self, state: Any) -> None:
        self._generator.set_state(state)


class _NumpyGenerator:
    in_place = False
    steady = False

    def __init__(self, generator: Any) -> None:
        self._generator = generator

    def state(self) -> Any:
        return self._generator.bit_generator.state

    def load(self, state: Any) -> None:
        self._generator.bit_generator.state = state


class _PythonRandom:
    in_place = False
    steady = False

    def __init__(self, generator: random.Random) -> None:
        self._generator = generator

    def state(self) -> Any:
        return self._generator.getstate()

    def load(self, state: Any) -> None:
        self._generator.setstate(state)
