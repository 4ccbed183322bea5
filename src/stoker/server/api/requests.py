"""Requests: bodies bounded before they are parsed, then read through the types of the model."""

from __future__ import annotations

import json
import re
import types
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import StrEnum
from functools import cache
from math import isfinite
from typing import Any, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

from fastapi import Request

from stoker.errors import BadInput, Problem, TooLarge
from stoker.model.job.fields import FieldKind, Maybe, Plain, Problems, encodable, nearest, wrong
from stoker.model.job.job import Job, schema
from stoker.model.job.values import Choice
from stoker.server.rounds.outside import call

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


T = TypeVar("T")

_INLINE_BYTES = 64 << 10  # what is parsed without leaving the event loop: less than a millisecond
_DEEPEST = 32
_ESCAPES = re.compile(rb"\\.", re.DOTALL)
_STRINGS = re.compile(rb'"[^"]*+"?')  # the end is optional: never searched for twice
_PAIRS = re.compile(rb"\[\]|\{\}")
_REST = bytes(set(range(256)) - set(b'[]{}"'))


@dataclass(frozen=True, slots=True)
class Bounds:
    """`values` are the commas and brackets of a body: each becomes an object in memory."""

    size_bytes: int = 4 << 20
    values: int = 200_000


async def body(request: Request, of: type[T], bounds: Bounds = Bounds()) -> T:  # noqa: B008 - it is frozen
    """The request's body as this dataclass. Raises TooLarge, JobInvalid, and BadInput naming the field."""
    data = await read_bytes(request, bounds.size_bytes)
    if len(data) <= _INLINE_BYTES:
        return parse(of, data, bounds)
    return await call(parse, of, data, bounds)


async def read_bytes(request: Request, most: int) -> bytes:
    data = bytearray()
    too_large = TooLarge(f"the body is larger than {most:,} bytes, the maximum of this call")
    if int(request.headers.get("content-length", "0")) > most:
        raise too_large
    async for chunk in request.stream():
        data += chunk
        if len(data) > most:
            raise too_large
    return bytes(data)


def parse(of: type[T], data: bytes, bounds: Bounds) -> T:
    check_json(data, bounds)
    try:
        value = json.loads(data, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        # A syntax error tells where it is; any other message might repeat what was sent.
        where = f": {error.msg} at byte {error.pos}" if isinstance(error, json.JSONDecodeError) else ""
        raise BadInput(f"the body is not JSON{where}") from None
    try:
        read: T = kind_for(of).read(value, "")
    except Problems as found:
        raise BadInput("; ".join(str(problem) for problem in found.problems[:20])) from None
    return read


def check_json(data: bytes, bounds: Bounds) -> None:
    """Linear in its size, and without parsing it: a few bytes of JSON may become a hundred in memory."""
    if sum(data.count(one) for one in (b",", b"[", b"{")) > bounds.values:
        raise TooLarge(f"the body has more than {bounds.values:,} values, the maximum of this call")
    # What is left of a text without brackets is its two quotes; most go at once, and no two others are neighbours.
    marks = _ESCAPES.sub(b"", data).translate(None, _REST).replace(b'""', b"")
    brackets = _STRINGS.sub(b"", marks)
    for _ in range(_DEEPEST):
        if not brackets:
            return
        brackets = _PAIRS.sub(b"", brackets)
    if len(brackets) > _DEEPEST:  # a few that do not match are left to the parser, which tells where
        raise BadInput(f"the body is nested more than {_DEEPEST} levels deep, or its brackets do not match")


def _refuse_constant(_word: str) -> NoReturn:
    raise ValueError("NaN and Infinity are not JSON")
