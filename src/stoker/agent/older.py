"""What the agent uses of Python 3.11, for a machine that has 3.10. Imported there before everything else, and by nobody
where Python is newer."""

from __future__ import annotations

import datetime
import enum
import importlib
import re
import sys
from types import ModuleType


class StrEnum(str, enum.Enum):  # noqa: UP042  # this is what it is made of
    """As in `enum` of Python 3.11."""

    def __str__(self) -> str:
        return str(self.value)

    def __format__(self, form: str) -> str:
        return format(str(self.value), form)

    @staticmethod
    def _generate_next_value_(name: str, *_: object) -> str:
        return name.lower()


def complete() -> None:
    """Adds what is missing to the standard library of this process."""
    for module, name, value in ((datetime, "UTC", datetime.timezone.utc), (enum, "StrEnum", StrEnum)):  # noqa: UP017
        if not hasattr(module, name):
            setattr(module, name, value)
    if "tomllib" not in sys.modules:
        sys.modules["tomllib"] = _toml()
    for now, before in (("_constants", "sre_constants"), ("_parser", "sre_parse")):
        if not hasattr(re, now):
            setattr(re, now, importlib.import_module(before))
            sys.modules[f"re.{now}"] = getattr(re, now)


def _toml() -> ModuleType:
    """pip carries the package from which `tomllib` was made. Without it, a `pyproject.toml` cannot be read."""
    for name in ("tomllib", "pip._vendor.tomli", "tomli"):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    return _Unreadable("tomllib")


class _Unreadable(ModuleType):
    class TOMLDecodeError(ValueError):
        pass

    @classmethod
    def loads(cls, _text: str) -> dict[str, object]:
        raise cls.TOMLDecodeError("this needs Python 3.11, or pip for the Python of the agent")
