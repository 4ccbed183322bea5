"""Frozen dataclasses to JSON and back: the form in which facts are stored and sent.

Reading ignores keys it does not know, so that an older program can read what a newer one wrote. It is for what the
server and its clients wrote; what a node wrote is read by `untrusted`.
"""

from __future__ import annotations

import json
import types
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum
from functools import cache
from math import isfinite, nan
from operator import attrgetter
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")


_ALREADY_PLAIN = {str, int, bool, type(None)}


def to_plain(value: Any) -> Any:
    """JSON-able data: datetimes as ISO 8601 text, decimals as text, tuples as lists, and null for what is not a finite
    number, since JSON has no word for it."""
    return value if type(value) in _ALREADY_PLAIN else _writer(cast(Any, type(value)))(value)


@cache
def _writer(kind: Any) -> Callable[[Any], Any]:
    """What turns a value of this type into plain data. Worked out once for each."""
    if kind is float:
        return lambda value: value if isfinite(value) else None
    if kind is datetime:
        return datetime.isoformat
    if issubclass(kind, tuple | list):
        return lambda value: [to_plain(item) for item in value] if value else []
    if issubclass(kind, Mapping):
        return lambda value: {str(key): to_plain(item) for key, item in value.items()} if value else {}
    if hasattr(kind, "plain"):
        own: Callable[[Any], Any] = kind.plain
        return own
    if is_dataclass(kind):
        return _record_writer(kind)
    return str if issubclass(kind, Decimal | StrEnum) else lambda value: value


def _record_writer(kind: Any) -> Callable[[Any], Any]:
    """Most fields are plain as they are: every save of a run writes hundreds."""
    names = tuple(one.name for one in fields(kind))
    if len(names) < 2:  # of one name, a getter gives no tuple
        return lambda value: {name: to_plain(getattr(value, name)) for name in names}
    get = attrgetter(*names)

    def write(value: Any) -> dict[str, Any]:
        plain = dict(zip(names, get(value), strict=True))
        for name, item in plain.items():
            if type(item) not in _ALREADY_PLAIN:
                plain[name] = _writer(cast(Any, type(item)))(item)
        return plain

    return write


def from_plain(of: type[T], value: Any) -> T:
    """The dataclass that `to_plain` made this from. Raises KeyError, TypeError or ValueError on foreign data."""
    try:
        read: T = _reader(cast(Any, of))(value)
    except (AttributeError, ArithmeticError) as error:  # a list for a mapping, a word for a number
        raise TypeError(str(error)) from error
    return read


def dump(value: Any) -> bytes:
    """UTF-8, but for text that has no such form, as a file name may have: that is escaped."""
    plain = to_plain(value)
    try:
        return json.dumps(plain, separators=(",", ":"), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return json.dumps(plain, separators=(",", ":")).encode()


def load(of: type[T], data: bytes) -> T:
    return from_plain(of, json.loads(data))


Reader = Callable[[Any], Any]


@cache
def _reader(of: Any) -> Reader:
    """What turns plain data into this type. Worked out once for each: a list of runs has thousands of values."""
    origin = get_origin(of)
    if origin in (Union, types.UnionType):
        return _optional(of)
    if origin is tuple:
        item = _reader(get_args(of)[0])
        return lambda value: tuple(item(one) for one in value)
    if origin is not None and origin is not Literal and issubclass(origin, Mapping):
        item = _reader(get_args(of)[1])
        return lambda value: {key: item(one) for key, one in value.items()}
    if isinstance(of, type) and hasattr(of, "read"):  # it knows its own plain form, as Job does
        own: Reader = of.read
        return own
    if isinstance(of, type) and is_dataclass(of):
        return _record(of)
    if of is float:
        return lambda value: nan if value is None else value
    if of is datetime:
        return _moment
    if isinstance(of, type) and issubclass(of, Decimal | StrEnum):
        return of
    return lambda value: value


def _moment(value: str) -> datetime:
    """Every time has a zone: one without cannot be compared with the others, and was meant as UTC."""
    found = datetime.fromisoformat(value)
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _optional(of: Any) -> Reader:
    arms = [arm for arm in get_args(of) if arm is not type(None)]
    if len(arms) > 1:
        return lambda value: value
    inner = _reader(arms[0])
    return lambda value: None if value is None else inner(value)


def _record(of: type[Any]) -> Reader:
    hints = get_type_hints(of)
    readers = {one.name: _reader(hints[one.name]) for one in fields(of)}
    return lambda value: of(**{name: read(value[name]) for name, read in readers.items() if name in value})
