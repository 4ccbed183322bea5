"""The random states of Python, NumPy and PyTorch: taken together, put back together."""

from __future__ import annotations

import random
import sys
from array import array
from collections.abc import Mapping
from typing import Any

from stoker.checkpoint.leaves import describe, view


def capture() -> dict[str, Any]:
    """The states of this process. NumPy and PyTorch count if the script has imported them."""
    version, numbers, gauss = random.getstate()
    states: dict[str, Any] = {"python": [version, array("L", numbers).tobytes(), gauss]}
    if (numpy := sys.modules.get("numpy")) is not None:
        kind, keys, position, has_gauss, cached = numpy.random.get_state()
        states["numpy"] = [kind, keys.tobytes(), int(position), int(has_gauss), float(cached)]
    if (torch := sys.modules.get("torch")) is not None:
        states["torch"] = as_bytes(torch.get_rng_state())
        if torch.cuda.is_initialized():
            states["cuda"] = [as_bytes(one) for one in torch.cuda.get_rng_state_all()]
    return states


def put_back(states: Mapping[str, Any]) -> None:
    """Twice is fine. A library that is not there any more is left out."""
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
