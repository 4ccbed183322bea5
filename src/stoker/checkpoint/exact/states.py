"""Everything of a process that the next number drawn depends on, besides weights: taken at a save, restored later."""

from __future__ import annotations

import random
import sys
from array import array
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

from stoker.checkpoint.state import randomness

State = dict[str, Any]

_MOST = 200  # generators that are looked for among the variables of a script
_KEYS = ("key", "rng", "seed")  # what the variables that hold a JAX key are called


def capture(frames: list[FrameType]) -> State:
    """As plain values. `frames` are those in whose variables generators are looked for."""
    state: State = {"random": randomness.capture(), "generators": {}, "keys": {}, "threads": _threads()}
    for name, generator in _generators(frames):
        state["generators"].setdefault(name, _held(generator))
    for name, key in _jax_keys(frames):
        state["keys"].setdefault(name, _key_numbers(key))
    if (seeds := _keras_seeds()) is not None:
        state["keras"] = [int(number) for number in sys.modules["keras"].ops.convert_to_numpy(seeds.state.value)]
    return state


def restore(state: Mapping[str, Any], frames: list[FrameType]) -> list[str]:
    """What could not be restored, in words."""
    missing: list[str] = []
    _set_threads(state.get("threads", {}))
    generators = dict(_generators(frames))
    for name, held in state.get("generators", {}).items():
        if name in generators and type(generators[name]).__name__ == held["kind"]:
            _restore_one(generators[name], held)
    missing += _restore_keys(state.get("keys", {}), frames)
    if "keras" in state and (seeds := _keras_seeds()) is not None:
        numpy = sys.modules["numpy"]
        seeds.state.assign(numpy.array(state["keras"], dtype=seeds.state.dtype))
    randomness.restore(state["random"])
    return missing


def _generators(frames: list[FrameType]) -> Iterator[tuple[str, Any]]:
    """Generators of the script's own in its variables, and in what the variables hold, by their names."""
    found = 0
    for prefix, variables in _scopes(frames):
        for name, value in list(variables.items()):
            for path, one in _inside(f"{prefix}{name}", value):
                found += 1
                yield path, one
                if found >= _MOST:
                    return


def _scopes(frames: list[FrameType]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The script's module, and the functions of it that are being executed."""
    main = vars(sys.modules["__main__"]) if "__main__" in sys.modules else {}
    yield "", main
    for frame in frames:
        if frame.f_code.co_name != "<module>" and not _is_library(frame.f_code.co_filename):
            yield f"{frame.f_code.co_qualname}.", frame.f_locals


def _is_library(file: str) -> bool:
    return "site-packages" in file or file.startswith(("<frozen", sys.base_prefix + "/lib"))


def _inside(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if _is_generator(value):
        yield name, value
        return
    data = sys.modules.get("torch.utils.data")
    if data is not None and isinstance(value, data.DataLoader):
        parts = {"dataset": value.dataset, "sampler": value.sampler, "batch_sampler": value.batch_sampler}
        for part, held in parts.items():
            yield from _inside_object(f"{name}.{part}", held)
    elif not isinstance(value, type):
        yield from _inside_object(name, value)


def _inside_object(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Of objects whose class the script has written: a dataset or a sampler with a generator of its own."""
    module = sys.modules.get(type(value).__module__)
    if module is None or _is_library(getattr(module, "__file__", None) or "<frozen"):
        return
    for attribute, held in list(getattr(value, "__dict__", {}).items()):
        if _is_generator(held):
            yield f"{name}.{attribute}", held


def _is_generator(value: Any) -> bool:
    kind = type(value)
    if isinstance(value, random.Random):
        return kind is random.Random
    if kind.__module__.startswith("numpy.random"):
        return kind.__name__ in ("Generator", "RandomState")
    return kind.__module__ == "torch._C" and kind.__name__ == "Generator"


def _held(generator: Any) -> State:
    kind = type(generator).__name__
    if kind == "Random":
        version, numbers, gauss = generator.getstate()
        return {"kind": kind, "state": [version, array("L", numbers).tobytes(), gauss]}
    if type(generator).__module__ == "torch._C":
        return {"kind": kind, "state": randomness.as_bytes(generator.get_state())}
    bits = generator.bit_generator if kind == "Generator" else generator
    return {"kind": kind, "state": _plain(bits.state if kind == "Generator" else bits.get_state(legacy=False))}


def _restore_one(generator: Any, held: State) -> None:
    if held["kind"] == "Random":
        version, numbers, gauss = held["state"]
        generator.setstate((version, tuple(array("L", numbers)), gauss))
    elif isinstance(held["state"], bytes):
        generator.set_state(randomness.as_tensor(held["state"]))
    elif held["kind"] == "Generator":
        if generator.bit_generator.state["bit_generator"] == held["state"]["bit_generator"]:
            generator.bit_generator.state = _numpy_state(held["state"])
    else:
        generator.set_state(_numpy_state(held["state"]))


def _plain(value: Any) -> Any:
    """A state of NumPy, without its arrays."""
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if hasattr(value, "tobytes") and len(getattr(value, "shape", [])):
        return {"array": value.tobytes(), "dtype": str(value.dtype)}
    return value.item() if hasattr(value, "item") else value


def _numpy_state(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if value.keys() == {"array", "dtype"}:
        return sys.modules["numpy"].frombuffer(value["array"], dtype=value["dtype"]).copy()
    return {name: _numpy_state(one) for name, one in value.items()}


def _jax_keys(frames: list[FrameType]) -> Iterator[tuple[str, Any]]:
    if "jax" not in sys.modules:
        return
    for prefix, variables in _scopes(frames):
        for name, value in list(variables.items()):
            if any(word in name.lower() for word in _KEYS) and _is_key(value):
                yield f"{prefix}{name}", value


def _is_key(value: Any) -> bool:
    jax = sys.modules["jax"]
    if not isinstance(value, jax.Array):
        return False
    return bool(jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key)) or (str(value.dtype), value.shape) == (
        "uint32",
        (2,),
    )


def _key_numbers(key: Any) -> State:
    jax = sys.modules["jax"]
    typed = str(key.dtype) != "uint32"
    data = jax.random.key_data(key) if typed else key
    numbers = sys.modules["numpy"].asarray(data)
    name = str(jax.random.key_impl(key)) if typed else ""
    return {"data": numbers.tobytes(), "shape": list(numbers.shape), "kind": name}


def _restore_keys(keys: Mapping[str, State], frames: list[FrameType]) -> list[str]:
    """Keys are values: only a variable of the script's module can be given another one."""
    if "jax" not in sys.modules:
        return []
    jax, numpy = sys.modules["jax"], sys.modules["numpy"]
    main, missing = vars(sys.modules["__main__"]), []
    local = {name for name, _ in _jax_keys(frames)} - main.keys()
    for name, held in keys.items():
        if name not in main:
            missing += [f"the JAX key `{name}` is a variable of a function"] if name in local else []
            continue
        numbers = jax.numpy.asarray(numpy.frombuffer(held["data"], dtype="uint32").reshape(held["shape"]))
        main[name] = jax.random.wrap_key_data(numbers, impl=held["kind"]) if held["kind"] else numbers
    return missing


def _keras_seeds() -> Any:
    held = sys.modules.get("keras.src.backend.common.global_state")
    return held.get_global_attribute("global_seed_generator") if held is not None else None


def _threads() -> dict[str, int]:
    torch = sys.modules.get("torch")
    return {"torch": torch.get_num_threads()} if torch is not None else {}


def _set_threads(threads: Mapping[str, int]) -> None:
    """Sums depend on how they are divided."""
    torch = sys.modules.get("torch")
    if torch is not None and threads.get("torch") and torch.get_num_threads() != threads["torch"]:
        torch.set_num_threads(threads["torch"])
