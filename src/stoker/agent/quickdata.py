"""A stand-in for `dataclasses` in the agent's own process, which starts a script before the real one has loaded.

The real module compiles half a dozen functions for every class: for the model that is most of an agent's start. This
one makes the same classes from closures. It knows what the model uses and refuses the rest; slots are passed over.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import MappingProxyType
from typing import Any


class FrozenInstanceError(AttributeError):
    pass


class _Missing:
    pass


MISSING = _Missing()


class Field:
    def __init__(self, default: Any, default_factory: Any, repr: bool, metadata: Any, kw_only: bool = False) -> None:
        self.name = ""
        self.default = default
        self.default_factory = default_factory
        self.repr = repr
        self.metadata = MappingProxyType(metadata or {})
        self.kw_only = kw_only

    def __class_getitem__(cls, item: Any) -> type[Field]:
        return cls


def field(*, default: Any = MISSING, default_factory: Any = MISSING, repr: bool = True, metadata: Any = None) -> Any:
    return Field(default, default_factory, repr, metadata)


def fields(record: Any) -> tuple[Field, ...]:
    return tuple(record.__dataclass_fields__.values())


def is_dataclass(record: Any) -> bool:
    return hasattr(record if isinstance(record, type) else type(record), "__dataclass_fields__")


def replace(record: Any, /, **changes: Any) -> Any:
    return type(record)(**{**record.__dict__, **changes})


def dataclass(
    of: type[Any] | None = None,
    /,
    *,
    frozen: bool = False,
    slots: bool = False,
    kw_only: bool = False,
    eq: bool = True,
    repr: bool = True,
) -> Any:
    def make(cls: type[Any]) -> type[Any]:
        known = _collect(cls, kw_only)
        given: dict[str, Any] = {
            "__dataclass_fields__": known,
            "__init__": _init(known),
        }
        if eq:
            given |= {"__eq__": _eq, "__hash__": _hash if frozen else None}
        if repr:
            given["__repr__"] = _repr
        if frozen:
            given |= {"__setattr__": _refuse, "__delattr__": _refuse}
        for name, value in given.items():
            if cls.__dict__.get(name) is None:  # a class with its own __eq__ has the hash None
                setattr(cls, name, value)
        return cls

    del slots
    return make if of is None else make(of)


def install() -> None:
    """From here on `import dataclasses` means this module, in this process."""
    sys.modules["dataclasses"] = sys.modules[__name__]


def _collect(cls: type[Any], kw_only: bool) -> dict[str, Field]:
    known: dict[str, Field] = {}
    for base in reversed(cls.__mro__[1:]):
        known |= base.__dict__.get("__dataclass_fields__", {})
    for name, kind in cls.__annotations__.items() if "__annotations__" in cls.__dict__ or _lazy(cls) else ():
        if str(kind).startswith(("ClassVar", "typing.ClassVar")):
            continue
        default = cls.__dict__.get(name, MISSING)
        one = default if isinstance(default, Field) else Field(default, MISSING, True, None)
        one.name = name
        one.kw_only = kw_only
        known[name] = one
        if isinstance(default, Field):
            delattr(cls, name) if one.default is MISSING else setattr(cls, name, one.default)
    return known


def _lazy(cls: type[Any]) -> bool:
    return cls.__dict__.get("__annotate_func__") is not None or cls.__dict__.get("__annotate__") is not None


def _init(known: dict[str, Field]) -> Callable[..., None]:
    names = tuple(name for name, one in known.items() if not one.kw_only)
    plan = tuple((name, one.default, one.default_factory) for name, one in known.items())

    def __init__(self: Any, *args: Any, **given: Any) -> None:  # noqa: N807  # it becomes that method
        if len(args) > len(names):
            raise TypeError(f"{type(self).__name__} takes {len(names)} values, {len(args)} were given")
        for name, value in zip(names, args, strict=False):
            if name in given:
                raise TypeError(f"{type(self).__name__} got `{name}` twice")
            given[name] = value
        values = self.__dict__
        for name, default, factory in plan:
            if name in given:
                values[name] = given.pop(name)
            elif factory is not MISSING:
                values[name] = factory()
            elif default is not MISSING:
                values[name] = default
            else:
                raise TypeError(f"{type(self).__name__} needs `{name}`")
        if given:
            raise TypeError(f"{type(self).__name__} has no `{next(iter(given))}`")
        if hasattr(self, "__post_init__"):
            self.__post_init__()

    return __init__


def _values(record: Any) -> tuple[Any, ...]:
    return tuple(record.__dict__[name] for name in record.__dataclass_fields__)


def _eq(self: Any, other: object) -> Any:
    return _values(self) == _values(other) if other.__class__ is self.__class__ else NotImplemented


def _hash(self: Any) -> int:
    return hash(_values(self))


def _repr(self: Any) -> str:
    shown = (f"{one.name}={self.__dict__[one.name]!r}" for one in fields(self) if one.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _refuse(_self: Any, name: str, *_value: Any) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")
