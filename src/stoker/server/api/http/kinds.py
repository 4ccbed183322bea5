"""The kinds of the model's `fields` for the types of requests: every problem names its field.

A field that its dataclass does not print, such as a secret, is not repeated in an error either.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import StrEnum
from functools import cache
from math import isfinite
from typing import Any, Union, get_args, get_origin, get_type_hints

from stoker.errors import Problem
from stoker.model.job.fields import FieldKind, Maybe, Plain, Problems, encodable, nearest, wrong
from stoker.model.job.job import Job, schema
from stoker.model.job.values import Choice

_LONGEST_TEXT = 65_536


def kind_for(of: Any) -> FieldKind:
    """The same kind for the same type."""
    return _made(of)


@cache
def _made(of: Any) -> FieldKind:
    origin = get_origin(of)
    if origin in (Union, types.UnionType):
        (inner,) = (arm for arm in get_args(of) if arm is not type(None))
        return Maybe(kind_for(inner))
    if origin is tuple:
        return _Items(kind_for(get_args(of)[0]))
    if origin is not None and issubclass(origin, Mapping):
        return _Names(kind_for(get_args(of)[1]))
    if of is Job:
        return _JobKind()
    if isinstance(of, type) and is_dataclass(of):
        return _Fields(of)
    if issubclass(of, StrEnum):
        return Choice(of)
    return _SIMPLE[of]


@dataclass(eq=False, repr=False)
class _Text:
    """May be empty. Lone surrogates and NUL are invalid in a database or a file name."""

    expected: str = f"text of at most {_LONGEST_TEXT:,} characters, without NUL and lone surrogates"

    def read(self, value: Plain, path: str) -> str:
        if not isinstance(value, str) or len(value) > _LONGEST_TEXT or "\0" in value or not encodable(value):
            raise wrong(path, value, self)
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "maxLength": _LONGEST_TEXT}


@dataclass(eq=False, repr=False)
class _Truth:
    expected: str = "`true` or `false`"

    def read(self, value: Plain, path: str) -> bool:
        if not isinstance(value, bool):
            raise wrong(path, value, self)
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "boolean"}


@dataclass(eq=False, repr=False)
class _Number:
    of: type[int] | type[float]
    expected: str

    def read(self, value: Plain, path: str) -> float:
        is_number = isinstance(value, int | self.of) and not isinstance(value, bool)
        if not is_number or abs(value) >= 2**63 or not isfinite(value):  # in this order: some integers are not a float
            raise wrong(path, value, self)
        return self.of(value)

    def schema(self) -> dict[str, Any]:
        return {"type": "integer" if self.of is int else "number"}


@dataclass(eq=False, repr=False)
class _Items:
    item: FieldKind

    @property
    def expected(self) -> str:
        return f"a list, each item {self.item.expected}"

    def read(self, value: Plain, path: str) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise wrong(path, value, self)
        try:
            return tuple([self.item.read(one, "") for one in value])
        except Problems:  # again, to name it: computing the path of each item takes longer than reading them
            return tuple([self.item.read(one, f"{path}[{at}]") for at, one in enumerate(value)])

    def schema(self) -> dict[str, Any]:
        return {"type": "array", "items": self.item.schema()}


@dataclass(eq=False, repr=False)
class _Names:
    """A mapping from any text to values of one kind."""

    item: FieldKind

    @property
    def expected(self) -> str:
        return f"a mapping of names to {self.item.expected}"

    def read(self, value: Plain, path: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise wrong(path, value, self)
        return {_SIMPLE[str].read(name, path): self.item.read(one, f"{path}.{name}") for name, one in value.items()}

    def schema(self) -> dict[str, Any]:
        return {"type": "object", "additionalProperties": self.item.schema()}


@dataclass(eq=False, repr=False)
class _Fields:
    """A mapping with known keys that becomes a dataclass."""

    of: type[Any]

    def __post_init__(self) -> None:
        hints = get_type_hints(self.of)
        self.kinds = {one.name: _for_field(one, hints[one.name]) for one in fields(self.of)}
        self.needed = [one.name for one in fields(self.of) if one.default is one.default_factory is MISSING]
        self.expected = "a mapping with " + ", ".join(f"`{name}`" for name in self.kinds)

    def read(self, value: Plain, path: str) -> Any:
        if not isinstance(value, dict):
            raise wrong(path or "body", value, self)
        prefix = f"{path}." if path else ""
        problems = [
            Problem(prefix + name, "nothing", self.kinds[name].expected) for name in self.needed if name not in value
        ]
        read: dict[str, Any] = {}
        for name, one in value.items():
            if name not in self.kinds:
                expected = "one of " + ", ".join(self.kinds)
                problems.append(Problem(prefix + name[:60], "an unknown key", expected, nearest(name[:60], self.kinds)))
                continue
            try:
                read[name] = self.kinds[name].read(one, prefix + name)
            except Problems as found:
                problems += found.problems
        if problems:
            raise Problems(*problems)
        return self.of(**read)

    def schema(self) -> dict[str, Any]:
        properties = {name: kind.schema() for name, kind in self.kinds.items()}
        shape = {"type": "object", "title": self.of.__name__, "properties": properties, "required": self.needed}
        return shape | {"additionalProperties": False}


@dataclass(eq=False, repr=False)
class _Hidden:
    """A kind whose values no error repeats."""

    inner: FieldKind

    @property
    def expected(self) -> str:
        return self.inner.expected

    def read(self, value: Plain, path: str) -> Any:
        try:
            return self.inner.read(value, path)
        except Problems:
            raise Problems(Problem(path, "another value", self.expected)) from None

    def schema(self) -> dict[str, Any]:
        return self.inner.schema()


@dataclass(eq=False, repr=False)
class _JobKind:
    """Its problems pass through as JobInvalid: the client has the job's file and shows where they are."""

    expected: str = "a mapping with `name` and `run`"

    def read(self, value: Plain, path: str) -> Job:  # noqa: ARG002 - as every kind
        return Job.read(value)

    def schema(self) -> dict[str, Any]:
        return {key: value for key, value in schema().items() if key != "$schema"}


def _for_field(one: Any, hint: Any) -> FieldKind:
    kind = kind_for(hint)
    if "kind" in one.metadata:
        kind = one.metadata["kind"]
    return kind if one.repr else _Hidden(kind)


_SIMPLE: dict[type[Any], FieldKind] = {
    str: _Text(),
    bool: _Truth(),
    int: _Number(int, "a whole number"),
    float: _Number(float, "a number"),
}
