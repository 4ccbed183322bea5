"""The random states of Python, NumPy and PyTorch: saved together, restored together."""

from __future__ import annotations

import ctypes
import random
import sys
from array import array
from collections.abc import Callable, Mapping
from typing import Any

from stoker.checkpoint.state.structure import describe, view

Raw = Mapping[str, Any]  # as the libraries return them, which is fastest; they are not shared


def capture() -> dict[str, Any]:
    """The states of this process. NumPy and PyTorch count if the script has imported them."""
    return pack(take())


def take() -> Raw:
    states: dict[str, Any] = {"python": random.getstate()}
    if (numpy := sys.modules.get("numpy")) is not None:
        states["numpy"] = _numpy.take(numpy)
    if (torch := sys.modules.get("torch")) is not None:
        states["torch"] = torch.get_rng_state()
        if torch.cuda.is_initialized():
            states["cuda"] = torch.cuda.get_rng_state_all()
    return states


class _Numpy:
    """Asks NumPy for its state only if that has changed: to tell it takes longer than everything else together, and in
    most scripts it is the same at every save."""

    def __init__(self) -> None:
        self._generator: Any = None
        self._memory: Any = None  # that it draws numbers from
        self._seen = b""
        self._last: Any = None

    def take(self, numpy: Any) -> Any:
        seen = self._look(numpy)
        # A number that is held back from a pair of normal ones can be used up without leaving a trace.
        if not seen or seen != self._seen or self._last[3]:
            self._seen, self._last = seen, numpy.random.get_state()
        return self._last

    def _look(self, numpy: Any) -> bytes:
        """The contents of that memory; empty if unavailable."""
        ask: Callable[[], Any] = getattr(numpy.random, "get_bit_generator", lambda: None)
        generator = ask()
        if generator is not self._generator:
            known = type(generator).__name__ == "MT19937"
            self._generator = generator
            self._memory = _Mt19937.from_address(generator.ctypes.state_address) if known else None
        return self._memory.raw if self._memory is not None else b""


_Mt19937 = ctypes.c_char * (625 * 4)  # 624 numbers, and which comes next
_numpy = _Numpy()


def pack(raw: Raw) -> dict[str, Any]:
    """The states in plain values. May be done later, and in another thread."""
    version, numbers, gauss = raw["python"]
    states: dict[str, Any] = {"python": [version, array("L", numbers).tobytes(), gauss]}
    if "numpy" in raw:
        kind, keys, position, has_gauss, cached = raw["numpy"]
        states["numpy"] = [kind, keys.tobytes(), int(position), int(has_gauss), float(cached)]
    if "torch" in raw:
        states["torch"] = as_bytes(raw["torch"])
    if "cuda" in raw:
        states["cuda"] = [as_bytes(one) for one in raw["cuda"]]
    return states


def restore(states: Mapping[str, Any]) -> None:
    """May be repeated. Skips libraries that are not loaded any more."""
    if "python" in states:
        version, numbers, gauss = states["python"]
        random.setstate((version, tuple(array("L", numbers)), gauss))
    if "numpy" in states and (numpy := sys.modules.get("numpy")) is not None:
        kind, keys, position, has_gauss, cached = states["numpy"]
        numpy.random.set_state((kind, numpy.frombuffer(keys, dtype=numpy.uint32), position, has_gauss, cached))
    if (torch := sys.modules.get("torch")) is not None:
        if "torch" in states:
            torch.set_rng_state(as_tensor(states["torch"]))
        if "cuda" in states and torch.cuda.is_available():
            torch.cuda.set_rng_state_all([as_tensor(one) for one in states["cuda"][: torch.cuda.device_count()]])


def as_bytes(state: Any) -> bytes:
    """A random state of PyTorch in a form that crosses processes without shared memory."""
    leaf = describe(state)
    assert leaf is not None
    return bytes(view(state, leaf))


def as_tensor(state: bytes) -> Any:
    torch = sys.modules["torch"]
    return torch.frombuffer(bytearray(state), dtype=torch.uint8)
