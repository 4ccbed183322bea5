"""Versions of frameworks that Stoker is made for, where it relies on what is inside of them.

The hook leaves others alone. A callback was asked for by name, so it refuses them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

from stoker.errors import BadInput

# From the first, and before the second.
MADE_FOR = {
    "torch": ((2, 0), (2, 15)),
    "keras": ((3, 0), (3, 17)),
    "lightning": ((2, 0), (2, 8)),
    "pytorch_lightning": ((2, 0), (2, 8)),
    "numpy": ((1, 22), (3, 0)),
    "joblib": ((1, 0), (2, 0)),
    "safetensors": ((0, 3), (1, 0)),
}
# The callbacks replace private methods, so their ranges are narrower. Each begins where what they replace took its
# present form: batches of Keras in threes, `_combined_loader` of Lightning, `_initial_global_step` of Transformers.
CALLBACKS = {
    "keras": ((3, 11), (3, 16)),
    "lightning": ((2, 2), (2, 7)),
    "transformers": ((5, 19), (5, 24)),
}


def is_known(name: str) -> str:
    """Empty where it is; else why not, in words."""
    found = _outside(name, MADE_FOR)
    if not found:
        return ""
    versions = f"from {_text(MADE_FOR[name][0])} on, and below {_text(MADE_FOR[name][1])}"
    return f"{name} {found} is not a supported version ({versions}): its saves are not changed"


def require(name: str) -> None:
    """Raises BadInput where the callback of this framework does not know the version that is installed."""
    if found := _outside(name, CALLBACKS):
        first, before = map(_text, CALLBACKS[name])
        raise BadInput(
            f"Stoker's callback supports {name} from {first} to below {before}, and {name} {found} is installed",
            hint=f"pip install '{name}>={first},<{before}', or use `stoker.checkpoint.Checkpoint` in your own loop",
        )


def _outside(name: str, ranges: Mapping[str, tuple[tuple[int, int], tuple[int, int]]]) -> str:
    """The version that is installed, where it is outside of its range."""
    try:
        found = version(name)
    except PackageNotFoundError:
        return ""
    first, before = ranges[name]
    return "" if first <= _numbers(found) < before else found


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(one) for one in re.findall(r"\d+", text)[:2])


def _text(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))
