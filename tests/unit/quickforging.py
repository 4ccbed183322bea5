"""What a node may write, made by the ten thousand: as `forging` does, without what Hypothesis needs to shrink it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from stoker.model.snapshot import Entry
from stoker.model.untrusted import LARGEST, LARGEST_STEP, LONGEST_S, Most, Within

NASTY: list[Any] = [
    *(None, True, False, 0, -1, 1, 10**400, -(10**19), 1 << 62, 0.5, -0.0, 1e308, -1e308, float("nan"), float("inf")),
    *("", "x", "\ud800", "../../x", "/etc/passwd", "C:\\x", "a\0b", "NaN", "1e999999999", "\x1b[2J", "x" * 33_000),
    *("2026-01-01T00:00:00", "9999-12-31T23:59:59+00:00", "0001-01-01T00:00:00+14:00", "2026-03-01T12:00:00+00:00"),
    *(
        "done",
        "running",
        "evicted",
        "succeeded",
        "cancel",
        "local",
        "spot",
        [],
        {},
        [[[[{"a": None}]]]],
        [1, 2],
        [None],
    ),
    {"a": {"last": [1]}},
]
Make = Callable[[random.Random, datetime], Any]


def forge(chance: random.Random, of: Any, now: datetime) -> bytes:
    """What an agent could write, something with a few values replaced, or anything."""
    if chance.random() < 0.05:
        return chance.choice(
            [b"", b"\xff", b"[" * 2000, b"{", chance.randbytes(40), json.dumps(_nasty(chance)).encode()]
        )
    plain = _made(of, "")(chance, now)
    for _ in range(chance.choice((0, 0, 1, 1, 2, 3))):
        _replace(chance, plain)
    data = json.dumps(plain).encode()
    return data[: chance.randrange(len(data) + 1)] if chance.random() < 0.03 else data


def _nasty(chance: random.Random) -> Any:
    return json.loads(json.dumps(chance.choice(NASTY)))  # one of its own, since it may be changed in turn


def _replace(chance: random.Random, place: Any) -> None:
    """One value somewhere inside becomes another, or goes."""
    while isinstance(place, dict | list) and place:
        key = chance.choice(list(place)) if isinstance(place, dict) else chance.randrange(len(place))
        if isinstance(place[key], dict | list) and place[key] and chance.random() < 0.6:
            place = place[key]
            continue
        if chance.random() < 0.2:
            del place[key]
        else:
            place[key] = _nasty(chance)
        return


@cache
def _made(of: Any, name: str) -> Make:
    """How to make the JSON of something that an agent could write, as extreme as it may be."""
    origin, inner = get_origin(of), get_args(of)
    if origin in (Union, UnionType):
        arms = [_made(arm, name) for arm in inner]
        return lambda chance, now: chance.choice(arms)(chance, now)
    if origin is Annotated and isinstance(inner[1], Most):
        return _made(inner[0], name)
    if origin is Annotated:
        return _number(inner[0], inner[1]) if isinstance(inner[1], Within) else _one_of([str(one) for one in inner[1]])
    if origin is tuple:
        item = _made(inner[0], name)
        return lambda chance, now: [item(chance, now) for _ in range(chance.choice((0, 1, 1, 2)))]
    if origin is Mapping:
        key, value = _made(inner[0], ""), _made(inner[1], name)
        return lambda chance, now: {str(key(chance, now)): value(chance, now) for _ in range(chance.choice((0, 1, 2)))}
    if is_dataclass(of):
        return _record(of)
    return _simple(of, name)


def _record(of: Any) -> Make:
    if of is Entry:
        paths, hashes = (
            ["model.bin", "a/b/c", "ä", "x" * 300, "..x", "checkpoints/1"],
            ["0" * 64, "0123456789abcdef" * 4],
        )
        return lambda chance, _: {
            "path": chance.choice(paths),
            "sha256": chance.choice(hashes),
            "size_bytes": chance.choice((0, 1, LARGEST)),
            "kind": chance.choice(("file", "file", "link", "folder")),
            "target": chance.choice(("", "model.bin", "/etc/passwd")),
        }
    hints = get_type_hints(of, include_extras=True)
    parts = [(one.name, _made(hints[one.name], one.name)) for one in fields(of)]
    return lambda chance, now: {name: make(chance, now) for name, make in parts}


def _simple(of: Any, name: str) -> Make:
    if of in (int, float):
        ranges = {"_s": Within(0, LONGEST_S), "step": Within(-LARGEST_STEP, LARGEST_STEP)}
        usual = Within(0, LARGEST) if of is int else Within(-1.7e308, 1.7e308)
        return _number(of, next((one for end, one in ranges.items() if name.endswith(end)), usual))
    if of is datetime:
        spans = [timedelta(), timedelta(seconds=-30), timedelta(days=300), timedelta(days=-100_000), timedelta(hours=1)]
        return lambda chance, now: (now + chance.choice(spans)).astimezone(UTC).isoformat()
    texts = ["", "loss", "a", "step", "ö", "0", "x" * 50]
    simple: dict[Any, list[Any]] = {str: texts, bool: [True, False], Decimal: ["1", "0.000000001"], NoneType: [None]}
    return _one_of(simple[of] if of in simple else [str(one) for one in of])


def _number(of: Any, bound: Within) -> Make:
    some = [bound.least, bound.most, 0, 1, 5, 0.5]
    return _one_of([of(one) for one in some if bound.least <= one <= bound.most])


def _one_of(some: list[Any]) -> Make:
    return lambda chance, _: chance.choice(some)
