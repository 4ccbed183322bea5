"""Frozen dataclasses to JSON and back: the form in which facts are stored and sent.

Reading ignores keys it does not know, so that an older program can read what a newer one wrote.
"""

from __future__ import annotations

import json
import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from functools import cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


def to_plain(value: Any) -> Any:
    """JSON-able data: datetimes as ISO 8601 text, decimals as text, tuples as lists."""
    if hasattr(value, "plain"):
        return value.plain()
    if is_dataclass(value) and not isinstance(value, type):
        return {one.name: to_plain(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    if isinstance(value, datetime):
        return value.isoformat()
    return str(value) if isinstance(value, Decimal | StrEnum) else value


def from_plain(of: type[T], value: Any) -> T:
    """The dataclass that `to_plain` made this from. Raises KeyError, TypeError or ValueError on foreign data."""
    read: T = _read(of, value)
    return read


def dump(value: Any) -> bytes:
    return json.dumps(to_plain(value), separators=(",", ":"), ensure_ascii=False).encode()


def load(of: type[T], data: bytes) -> T:
    return from_plain(of, json.loads(data))


@cache
def _hints(of: type[Any]) -> dict[str, Any]:
    return get_type_hints(of)


def _read(of: Any, value: Any) -> Any:
    origin = get_origin(of)
    if origin in (Union, types.UnionType):
        inner = [arm for arm in get_args(of) if arm is not type(None)]
        return None if value is None else _read(inner[0], value) if len(inner) == 1 else value
    if origin is tuple:
        return tuple(_read(get_args(of)[0], item) for item in value)
    if origin is not None and origin is not Literal and issubclass(origin, Mapping):
        return {key: _read(get_args(of)[1], item) for key, item in value.items()}
    if isinstance(of, type) and hasattr(of, "read"):  # it knows its own plain form, as Job does
        return of.read(value)
    if isinstance(of, type) and is_dataclass(of):
        hints = _hints(of)
        return of(**{one.name: _read(hints[one.name], value[one.name]) for one in fields(of) if one.name in value})
    if of is datetime:
        return datetime.fromisoformat(value)
    if isinstance(of, type) and issubclass(of, Decimal | StrEnum):
        return of(value)
    return value
