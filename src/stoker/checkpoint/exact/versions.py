"""Versions of frameworks that the hook is made for. It changes what is inside of them, so others are left alone."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version

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


def is_known(name: str) -> str:
    """Empty where it is; else why not, in words."""
    try:
        found = version(name)
    except PackageNotFoundError:
        return ""
    first, before = MADE_FOR[name]
    if first <= _numbers(found) < before:
        return ""
    versions = f"from {_text(first)} on, and below {_text(before)}"
    return f"{name} {found} is not a version that this is made for ({versions}): its saves are left as they are"


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(one) for one in re.findall(r"\d+", text)[:2])


def _text(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))
