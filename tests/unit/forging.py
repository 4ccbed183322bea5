"""Everything that a node can write, forged: values of each type with extreme contents, and JSON with anything in it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import is_dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from hypothesis import strategies as st

from stoker.model import wire
from stoker.model.snapshot import Entry, EntryKind
from stoker.model.untrusted import LARGEST, LARGEST_STEP, LONGEST_S, OLDEST, Most, Within

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
HASHES = st.sampled_from(["0" * 64, "0123456789abcdef" * 4])
PATHS = st.sampled_from(["model.bin", "a/b/c", "ä", "x" * 300, "a b", "..x", "a/..b"])

nasty = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.builds(lambda: 10**400),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(
        [
            "2026-01-01T00:00:00",
            "9999-12-31T23:59:59+00:00",
            "0001-01-01T00:00:00+14:00",
            "\ud800",
            "../../x",
            "/etc/passwd",
            "C:\\x",
            "a\0b",
            "NaN",
            "1e999999999",
            "done",
            "succeeded",
        ]
    ),
    st.builds(lambda: "x" * 33_000),
    st.builds(list),
    st.builds(dict),
    st.builds(lambda: [[[[{"a": None}]]]]),
    st.lists(st.integers(), max_size=3),
)


@cache
def fitting(of: Any, name: str = "") -> st.SearchStrategy[Any]:
    """Values that an agent could write, as extreme as they may be."""
    origin, inner = get_origin(of), get_args(of)
    if origin in (Union, UnionType):
        return st.one_of([fitting(arm, name) for arm in inner])
    if origin is Annotated and isinstance(inner[1], Most):
        return fitting(inner[0], name)
    if origin is Annotated:
        return _within(inner[0], inner[1]) if isinstance(inner[1], Within) else st.sampled_from(list(inner[1]))
    if origin is tuple:
        return st.lists(fitting(inner[0], name), max_size=2).map(tuple)
    if origin is Mapping:
        return st.dictionaries(fitting(inner[0]), fitting(inner[1], name), max_size=2)
    if of is Entry:
        return st.builds(Entry, PATHS, st.just(EntryKind.FILE), HASHES, st.integers(0, LARGEST), st.booleans())
    if isinstance(of, type) and is_dataclass(of):
        hints = get_type_hints(of, include_extras=True)
        return st.builds(of, **{field: fitting(hint, field) for field, hint in hints.items()})
    if of is float:
        ranges = {"_s": Within(0, LONGEST_S), "step": Within(-LARGEST_STEP, LARGEST_STEP)}
        return _within(of, next((one for end, one in ranges.items() if name.endswith(end)), Within(-1.7e308, 1.7e308)))
    if of is datetime:
        earliest, latest = OLDEST.replace(tzinfo=None), (NOW + timedelta(days=300)).replace(tzinfo=None)
        return st.datetimes(earliest, latest, timezones=st.just(UTC))
    simple = {
        str: st.text(st.characters(exclude_categories=["Cs"]), max_size=6),
        int: st.integers(0, LARGEST),
        bool: st.booleans(),
        Decimal: st.decimals(-(10**9), 10**9, places=9),
        NoneType: st.none(),
    }
    return simple[of] if of in simple else st.sampled_from(list(of))


def _within(of: Any, bound: Within) -> st.SearchStrategy[Any]:
    return st.integers(int(bound.least), int(bound.most)) if of is int else st.floats(bound.least, bound.most)


@st.composite
def forged(draw: st.DrawFn, of: Any) -> bytes:
    """What an agent could write, something with a few values replaced, or anything."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=60) | nasty.map(lambda value: json.dumps(value).encode()))
    plain = wire.to_plain(draw(fitting(of)))
    for _ in range(draw(st.integers(0, 3))):
        _replace(draw, plain)
    data = json.dumps(plain).encode()
    if draw(st.integers(0, 9)) == 0:
        return data[: draw(st.integers(0, len(data)))]
    return data


def _replace(draw: st.DrawFn, plain: Any) -> None:
    """One value somewhere inside becomes another, or goes."""
    place = plain
    while isinstance(place, dict | list) and place:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = draw(st.sampled_from(keys))
        if isinstance(place[key], dict | list) and place[key] and draw(st.booleans()):
            place = place[key]
            continue
        if isinstance(place, dict) and draw(st.integers(0, 4)) == 0:
            del place[key]
        else:
            place[key] = draw(nasty)
        return
