"""The kinds of value a job may hold: each reads what a person wrote, names what it expected, and describes itself.

A kind is the single definition behind validation, the Python `Job`, the JSON Schema and the reference page. Kinds are
neither compared nor printed, and say so: what `dataclass` need not write saves a third of a millisecond for each.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from decimal import Decimal
from enum import StrEnum
from functools import cache
from typing import Any, Protocol

from stoker.errors import JobInvalid, Problem

Plain = Any  # what YAML and JSON give: None, bool, int, float, str, list, dict


class FieldKind(Protocol):
    """`read` takes a plain value or one it has already read; it raises Problems, and never anything else."""

    @property
    def expected(self) -> str: ...
    def read(self, value: Plain, path: str) -> Any: ...
    def schema(self) -> dict[str, Any]: ...


class Problems(Exception):
    """What a kind raises: one or more problems with their paths."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__(*problems)
        self.problems = problems


def a(kind: FieldKind, help: str, *, default: Any = MISSING, default_factory: Any = MISSING) -> Any:
    """A dataclass field of this kind, with the sentence that documents it."""
    return field(default=default, default_factory=default_factory, metadata={"kind": kind, "help": help})


def kind_of(one: Field[Any]) -> FieldKind:
    kind: FieldKind = one.metadata["kind"]
    return kind


def check(record: Any) -> None:
    """Reads every field of a frozen dataclass in place: called from its `__post_init__`."""
    problems: list[Problem] = []
    for one in fields(record):
        try:
            object.__setattr__(record, one.name, kind_of(one).read(getattr(record, one.name), one.name))
        except Problems as found:
            problems += found.problems
    if problems:
        raise JobInvalid(problems)


def shown(value: Plain) -> str:
    """A value as an error shows it: short, on one line, quoted where it is text."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, Mapping):
        return f"a mapping with {len(value)} keys" if len(value) != 1 else "a mapping with 1 key"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    if isinstance(value, int) and abs(value) >= 10**60:
        return "a number with more than 60 digits"  # Python refuses to spell out very long ones
    text = repr(str(value))[1:-1]
    return f"`{text}`" if len(text) <= 60 else f"`{text[:57]}...`"


def encodable(text: str) -> bool:
    """Bytes of a command line that are not UTF-8 come as lone surrogates, which no file or database can hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name that was probably meant, or an empty string."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)), "")


def wrong(path: str, value: Plain, kind: FieldKind, near: str = "") -> Problems:
    return Problems(Problem(path, shown(value), kind.expected, near))


@dataclass(eq=False, repr=False)
class Maybe:
    """A value that may be left out, or be null."""

    inner: FieldKind

    @property
    def expected(self) -> str:
        return self.inner.expected

    def read(self, value: Plain, path: str) -> Any:
        return None if value is None else self.inner.read(value, path)

    def schema(self) -> dict[str, Any]:
        return {"anyOf": [self.inner.schema(), {"type": "null"}]}


OF_MATRIX = re.compile(r"\$\{matrix\.([A-Za-z_][A-Za-z0-9_]*)\}")


@dataclass(eq=False, repr=False)
class PerTrial:
    """A value that may be `${matrix.NAME}`. The job of a sweep holds that text; each of its trials holds a value."""

    inner: FieldKind

    @property
    def expected(self) -> str:
        return self.inner.expected

    def read(self, value: Plain, path: str) -> Any:
        return value if is_reference(value) else self.inner.read(value, path)

    def schema(self) -> dict[str, Any]:
        return {"anyOf": [self.inner.schema(), {"type": "string", "pattern": f"^{OF_MATRIX.pattern}$"}]}


def is_reference(value: Plain) -> bool:
    return isinstance(value, str) and OF_MATRIX.fullmatch(value) is not None


@dataclass(eq=False, repr=False)
class Either:
    """The first kind that can read the value."""

    first: FieldKind
    second: FieldKind

    @property
    def expected(self) -> str:
        return f"{self.first.expected}, or {self.second.expected}"

    def read(self, value: Plain, path: str) -> Any:
        for kind in (self.first, self.second):
            try:
                return kind.read(value, path)
            except Problems:
                continue
        raise wrong(path, value, self)

    def schema(self) -> dict[str, Any]:
        return {"anyOf": [self.first.schema(), self.second.schema()]}


@dataclass(eq=False, repr=False)
class ListOf:
    """A list; a single item alone is a list of one."""

    item: FieldKind

    @property
    def expected(self) -> str:
        return f"a list of items, each {self.item.expected}"

    def read(self, value: Plain, path: str) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple):
            return (self.item.read(value, path),)
        read: list[Any] = []
        problems: list[Problem] = []
        for index, item in enumerate(value):
            try:
                read.append(self.item.read(item, f"{path}[{index}]"))
            except Problems as found:
                problems += found.problems
        if problems:
            raise Problems(*problems)
        return tuple(read)

    def schema(self) -> dict[str, Any]:
        item = self.item.schema()
        return {"anyOf": [item, {"type": "array", "items": item}]}


@dataclass(eq=False, repr=False)
class MapOf:
    """A mapping from names that match `key` to values of one kind."""

    item: FieldKind
    key: str
    key_expected: str

    @property
    def expected(self) -> str:
        return f"a mapping of {self.key_expected} to {self.item.expected}"

    def read(self, value: Plain, path: str) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise wrong(path, value, self)
        read: dict[str, Any] = {}
        problems: list[Problem] = []
        for name, item in value.items():
            where = f"{path}.{name}"
            if not isinstance(name, str) or not re.fullmatch(self.key, name):
                problems.append(Problem(where, shown(name), self.key_expected))
                continue
            try:
                read[name] = self.item.read(item, where)
            except Problems as found:
                problems += found.problems
        if problems:
            raise Problems(*problems)
        return read

    def schema(self) -> dict[str, Any]:
        return {"type": "object", "patternProperties": {f"^(?:{self.key})$": self.item.schema()}} | _CLOSED


_CLOSED: dict[str, Any] = {"additionalProperties": False}


@dataclass(eq=False, repr=False)
class Record:
    """A mapping with known keys that becomes a frozen dataclass. `short` reads the form people write by hand."""

    of: type[Any]
    short: FieldKind | None = None
    widen: Callable[[Any], Mapping[str, Plain]] = dict  # what the short form stands for

    @property
    def expected(self) -> str:
        keys = "a mapping with " + ", ".join(f"`{one.name}`" for one in fields(self.of))
        return f"{self.short.expected}, or {keys}" if self.short else keys

    def read(self, value: Plain, path: str) -> Any:
        if isinstance(value, self.of):
            return value
        if self.short and not isinstance(value, Mapping):
            try:
                value = self.widen(self.short.read(value, path))
            except Problems:
                raise wrong(path, value, self) from None
        if not isinstance(value, Mapping):
            raise wrong(path, value, self)
        return read_record(self.of, value, f"{path}." if path else "")

    def schema(self) -> dict[str, Any]:
        record = record_schema(self.of)
        return {"anyOf": [self.short.schema(), record]} if self.short else record


def read_record(of: type[Any], value: Mapping[str, Plain], prefix: str) -> Any:
    """Unknown and missing keys are problems beside those of the values, so that one look shows everything."""
    known = {one.name: one for one in fields(of)}
    problems: list[Problem] = []
    for key in value:
        if key not in known:
            near = nearest(key, known) if isinstance(key, str) else ""
            expected = "a known key" if near else "one of " + ", ".join(known)
            problems.append(Problem(f"{prefix}{key}" or '""', "an unknown key", expected, near))
    for name, one in known.items():
        if name in value:
            try:
                kind_of(one).read(value[name], prefix + name)
            except Problems as found:
                problems += found.problems
        elif one.default is MISSING and one.default_factory is MISSING:
            problems.append(Problem(prefix + name, "nothing", kind_of(one).expected))
    if problems:
        raise Problems(*problems)
    try:
        return of(**value)
    except JobInvalid as found:  # rules that look at several fields at once
        raise Problems(*(_moved(problem, prefix) for problem in found.problems)) from None


def _moved(problem: Problem, prefix: str) -> Problem:
    return Problem(prefix + problem.field, problem.found, problem.expected, problem.nearest)


def record_schema(of: type[Any]) -> dict[str, Any]:
    """The JSON Schema of a record, with each field's help as its description."""
    properties = {one.name: kind_of(one).schema() | {"description": one.metadata["help"]} for one in fields(of)}
    needed = [one.name for one in fields(of) if one.default is MISSING and one.default_factory is MISSING]
    return {"type": "object", "properties": properties, "required": needed} | _CLOSED


_PLAIN = {str, int, float, bool, type(None)}


@cache
def _names(kind: type[Any]) -> tuple[str, ...]:
    """Of a record's fields; empty: it is none."""
    return tuple(one.name for one in fields(kind)) if is_dataclass(kind) else ()


def plain(value: Any) -> Plain:
    """A record as YAML or JSON holds it. Reading it back gives an equal record."""
    kind: Any = type(value)
    if kind in _PLAIN:
        return value
    if names := _names(kind):
        return {name: plain(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return str(value) if isinstance(value, Decimal | StrEnum) else value
