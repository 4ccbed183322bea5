"""Reads what a node wrote: every value has its type and lies within bounds, or all of it is refused with Malformed.

A script can write whatever its node can, so none of it is trusted. Units are in names, and so are ranges: a field that
ends in `_s` is a duration, one that ends in `_bytes` a size. Keys that are not known are ignored, as in `wire`.
"""

from __future__ import annotations

import json
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from functools import cache
from math import nan
from sys import float_info
from typing import Annotated, Any, NamedTuple, Protocol, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from stoker.errors import Malformed, SnapshotRefused
from stoker.model.snapshot import Entry, EntryKind, checked_path

T = TypeVar("T")

SMALL_BYTES = 1 << 20  # a fence, the end of a visit
REPORT_BYTES = 4 << 20  # a thousand metrics with long names fit
LINE_BYTES = 4 << 20  # one event, or one point with all of its metrics
MANIFEST_BYTES = 128 << 20
MOST_ITEMS = 500_000  # in one list or mapping: files of a manifest
MOST_VALUES = 8 * MOST_ITEMS  # of JSON in all
VALUES_PER_KB = 160  # likewise: what is denser than anything an agent writes only takes memory
LONGEST_TEXT = 32_768
LONGEST_PATH = 4096  # as Linux has it
DEEPEST_PATH = 256  # folders in folders
LONGEST_S = 1e9  # thirty years
LARGEST = 1 << 62
LARGEST_STEP = 1e19  # whatever fits in 64 bits
AHEAD = timedelta(days=366)  # by which a node's clock, or the server's, may be wrong
OLDEST = datetime(1600, 1, 1, tzinfo=UTC)  # files may have times long before 1970
_HEX = frozenset("0123456789abcdef")


class Gettable(Protocol):
    def get(self, key: str, start: int = 0, size: int | None = None) -> bytes: ...


class Within(NamedTuple):
    """The range of a number, both ends included: `Annotated[float, Within(0, 1)]`. `Annotated[str, Phase]` is a text
    that is one of an enum's."""

    least: float
    most: float


class Most(NamedTuple):
    """How much there may be of something: `Annotated[Mapping[str, float], Most(1000, 400)]` has at most a thousand
    names of at most 400 characters, `Annotated[str, Most(40)]` at most 40 characters."""

    items: int
    chars: int = LONGEST_TEXT  # of each name


COUNT = Within(0, LARGEST)
Seconds = Annotated[float, Within(0, LONGEST_S)]
_BY_NAME = {
    "_s": Within(0, LONGEST_S),
    "_bytes": COUNT,
    "_ns": Within(-(1 << 63), (1 << 63) - 1),
    "step": Within(-LARGEST_STEP, LARGEST_STEP),
}
Reader = Callable[[Any, datetime], Any]  # a plain value, and the latest moment that is believed


def fetch(of: type[T], store: Gettable, key: str, most_bytes: int, now: datetime) -> T:
    """What is at a key. Never more than `most_bytes` are read. Raises Malformed, and what the store raises."""
    return load(of, fetch_bytes(store, key, most_bytes), now)


def fetch_bytes(store: Gettable, key: str, most_bytes: int) -> bytes:
    data = store.get(key, 0, most_bytes + 1)
    if len(data) > most_bytes:
        raise Malformed(f"it is larger than {most_bytes >> 20} MB")
    return data


def load(of: type[T], data: bytes, now: datetime) -> T:
    """The dataclass that `wire.dump` made this from. `now` is by the reader's clock. Raises Malformed."""
    return read(of, parsed(data), now)


def read(of: type[T], value: Any, now: datetime) -> T:
    """The same from plain data."""
    try:
        found: T = _reader(cast(Any, of), "")(value, now + AHEAD)
    except _Unfit as error:
        raise Malformed(str(error)) from None
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:  # a kind nobody thought of
        raise Malformed(f"it cannot be read ({type(error).__name__}: {str(error)[:200]})") from error
    return found


def parsed(data: bytes) -> Any:
    """JSON as plain data. Raises Malformed, also where it would take far more memory than its bytes."""
    dense = data.count(b",") + data.count(b"[") + data.count(b"{")
    if dense > min(1000 + len(data) * VALUES_PER_KB // 1000, MOST_VALUES):
        raise Malformed("it is not JSON that an agent writes: it has too many values for its size")
    try:
        return json.loads(data)
    except RecursionError:
        raise Malformed("it is nested too deeply") from None
    except ValueError as error:  # not UTF-8, not JSON, or a number with thousands of digits
        raise Malformed(f"it is not JSON: {str(error)[:200]}") from None


class _Unfit(Exception):
    """What is wrong with a value, and with which."""

    def __init__(self, what: str, *where: object) -> None:
        super().__init__(what)
        self.what = what
        self.where = where

    def inside(self, name: object) -> _Unfit:
        return _Unfit(self.what, name, *self.where)

    def __str__(self) -> str:
        path = ".".join(_name(one) for one in self.where)
        return f"{path}: {self.what}" if path else self.what


def _name(part: object) -> str:
    text = str(part).encode(errors="backslashreplace").decode()
    return text if len(text) <= 80 else f"{text[:77]}..."


def _shown(value: Any) -> str:
    kind = {dict: "a mapping", list: "a list", bool: "a truth value", type(None): "nothing"}.get(type(value))
    if kind:
        return kind
    text = repr(value) if not isinstance(value, int) or abs(value) < LARGEST else "a huge number"
    return text if len(text) <= 60 else f"{text[:57]}..."


@cache
def _reader(of: Any, name: str) -> Reader:
    """What turns plain data into this type; `name` is that of the field it is in. Worked out once for each."""
    origin, inner = get_origin(of), get_args(of)
    if origin in (Union, types.UnionType):
        return _optional(_reader(next(arm for arm in inner if arm is not type(None)), name))
    if origin is Annotated:
        return _bounded(inner[0], inner[1], name)
    if origin is tuple or (origin is not None and issubclass(origin, Mapping)):
        return _bounded(of, Most(MOST_ITEMS), name)
    if of is Entry:
        return _entry
    if isinstance(of, type) and is_dataclass(of):
        return _record(of)
    if of is int or of is float:
        return _number(of, next((bound for end, bound in _BY_NAME.items() if name.endswith(end)), None))
    return _SIMPLE[of] if of in _SIMPLE else _word(of)


def _bounded(of: Any, bound: Any, name: str) -> Reader:
    """A type with what is said of it beside it."""
    origin, inner = get_origin(of), get_args(of)
    if isinstance(bound, Within):
        return _number(of, bound)
    if not isinstance(bound, Most):
        return _word(bound)
    if of is str:
        return _short(bound.items)
    if origin is tuple:
        return _list(_reader(inner[0], name), bound.items)
    key = _short(bound.chars) if inner[0] is str else _reader(inner[0], "")
    return _mapping(key, _reader(inner[1], name), bound.items)


def _optional(item: Reader) -> Reader:
    return lambda value, latest: None if value is None else item(value, latest)


def _list(item: Reader, most: int) -> Reader:
    def items(value: Any, latest: datetime) -> tuple[Any, ...]:
        if type(value) is not list or len(value) > most:
            raise _Unfit(f"found {_shown(value)}, expected a list of at most {most}")
        read: list[Any] = []
        try:
            for one in value:
                read.append(item(one, latest))  # how many there are says which one is unfit
        except _Unfit as error:
            raise error.inside(len(read)) from None
        return tuple(read)

    return items


def _mapping(key: Reader, item: Reader, most: int) -> Reader:
    def items(value: Any, latest: datetime) -> dict[Any, Any]:
        if type(value) is not dict or len(value) > most:
            raise _Unfit(f"found {_shown(value)}, expected a mapping of at most {most}")
        name = ""
        try:
            read = {}
            for name, one in value.items():
                read[key(name, latest)] = item(one, latest)
            return read
        except _Unfit as error:
            raise error.inside(name) from None

    return items


def _record(of: type[Any]) -> Reader:
    hints = get_type_hints(of, include_extras=True)
    readers = {one.name: _reader(hints[one.name], one.name) for one in fields(of)}
    needed = [one.name for one in fields(of) if one.default is MISSING and one.default_factory is MISSING]

    def record(value: Any, latest: datetime) -> Any:
        if type(value) is not dict:
            raise _Unfit(f"found {_shown(value)}, expected a {of.__name__}")
        for name in needed:
            if name not in value:
                raise _Unfit(f"a {of.__name__} without `{name}`")
        given, name = {}, ""
        try:
            for name, reader in readers.items():
                if name in value:
                    given[name] = reader(value[name], latest)
        except _Unfit as error:
            raise error.inside(name) from None
        return of(**given)

    return record


def _number(of: Any, bound: Within | None) -> Reader:
    """A float may be null, which is how nan and infinity are written, unless it has a range."""
    least, most = bound or (COUNT if of is int else Within(-float_info.max, float_info.max))

    def number(value: Any, _latest: datetime) -> Any:
        kind = type(value)
        if kind is int and of is float and abs(value) >= LARGEST:
            value = float(value) if abs(value) < 1 << 1023 else nan
        if kind is of or (kind is int and of is float):
            if least <= value <= most:  # which neither infinity nor what is not a number is
                return value
        elif value is None and of is float and bound is None:
            return nan
        whole, where = "whole" if of is int else "finite", f" of {least:g} to {most:g}" if bound else ""
        raise _Unfit(f"found {_shown(value)}, expected a {whole} number{where}")

    return number


def _word(of: type[StrEnum]) -> Reader:
    known = {str(one): one for one in of}

    def word(value: Any, _latest: datetime) -> StrEnum:
        found = known.get(value) if type(value) is str else None
        if found is None:
            raise _Unfit(f"found {_shown(value)}, expected one of {', '.join(known)}")
        return found

    return word


@cache
def _short(most: int) -> Reader:
    def text(value: Any, _latest: datetime) -> str:
        """Names of files may hold what is no Unicode; it is shown escaped, since nothing else can store or send it."""
        if type(value) is not str or len(value) > most:
            raise _Unfit(f"found {_shown(value)}, expected a text of at most {most} characters")
        return value if value.isascii() else value.encode(errors="backslashreplace").decode()

    return text


def _truth(value: Any, _latest: datetime) -> bool:
    if type(value) is not bool:
        raise _Unfit(f"found {_shown(value)}, expected true or false")
    return value


def _moment(value: Any, latest: datetime) -> datetime:
    try:
        found = datetime.fromisoformat(value)
        if found.tzinfo is not None and OLDEST <= found <= latest:
            return found.astimezone(UTC)
    except (ValueError, TypeError, ArithmeticError):
        pass
    raise _Unfit(f"found {_shown(value)}, expected a time with its zone, and not one in the far future")


def _decimal(value: Any, _latest: datetime) -> Decimal:
    try:
        found = Decimal(value) if type(value) is str and len(value) <= 60 else None
        if found is not None and found.is_finite() and abs(found) < LARGEST and int(found.as_tuple().exponent) > -60:
            return found
    except ArithmeticError:
        pass
    raise _Unfit(f"found {_shown(value)}, expected a sum")


_SIMPLE: dict[Any, Reader] = {str: _short(LONGEST_TEXT), bool: _truth, datetime: _moment, Decimal: _decimal}


def _entry(value: Any, _latest: datetime) -> Entry:
    """Written out, because there are many of them. The path stays in its folder, and the hash is one: it names a key
    in the store."""
    if type(value) is not dict:
        raise _Unfit(f"found {_shown(value)}, expected an Entry")
    get = value.get
    path, sha256, size, target = get("path"), get("sha256", ""), get("size_bytes", 0), get("target", "")
    executable, kind = get("executable", False), get("kind", "file")
    if type(path) is not str or len(path) > LONGEST_PATH or not _is_inside(path):
        raise _Unfit(f"found the path {_shown(path)}, expected one inside its folder")
    if type(kind) is not str or kind not in _KINDS or type(size) is not int or not 0 <= size <= LARGEST:
        raise _Unfit(f"`{path[:200]}`: found {_shown(kind)} with {_shown(size)} bytes, expected {', '.join(_KINDS)}")
    if type(sha256) is not str or ((sha256 or kind == "file") and not _is_hash(sha256)):
        raise _Unfit(f"`{path[:200]}`: found {_shown(sha256)}, expected a sha256")
    if type(target) is not str or (kind == "link" and not 0 < len(target) <= LONGEST_PATH) or not _is_text(target):
        raise _Unfit(f"`{path[:200]}`: found {_shown(target)}, expected what the link leads to")
    return Entry(path, _KINDS[kind], sha256, size, _truth(executable, _latest), target)


def _is_inside(path: str) -> bool:
    try:
        return path.count("/") < DEEPEST_PATH and _is_text(checked_path(path))
    except SnapshotRefused:
        return False


def _is_hash(text: str) -> bool:
    return len(text) == 64 and _HEX.issuperset(text)


def _is_text(text: str) -> bool:
    """It has a form in UTF-8, and in a system call."""
    if text.isascii():
        return "\0" not in text
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False


_KINDS = {str(one): one for one in EntryKind}
