from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stoker.errors import BadInput, TooLarge
from stoker.server.api.requests import Bounds, check_json, kind_for, parse

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text('[]{}"\\,a:é'),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text('[]{}"\\a'), inner, max_size=4),
)


@dataclass(frozen=True)
class Inner:
    count: int
    share: float = 0.0


@dataclass(frozen=True)
class Asked:
    name: str
    inner: Inner | None = None
    words: tuple[str, ...] = ()
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)


def depth(value: Any) -> int:
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inside is None else 1 + max((depth(one) for one in inside), default=0)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(PLAIN, st.booleans(), st.integers(0, 40))
def test_depth_is_seen_before_parsing_whatever_texts_hold(value: Any, ascii: bool, more: int) -> None:
    for _ in range(more):
        value = [value, '[{"\\']
    data = json.dumps(value, ensure_ascii=ascii).encode()
    if depth(value) <= 32:
        check_json(data, Bounds())
    elif depth(value) > 64:
        with pytest.raises(BadInput):
            check_json(data, Bounds())


@given(st.binary(max_size=200) | st.text('[]{}",:\\ 1a', max_size=200).map(str.encode))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        parse(Asked, data, Bounds())
    except BadInput:
        return


def test_the_number_of_values_is_bounded_before_parsing() -> None:
    with pytest.raises(TooLarge, match="10 values"):
        check_json(b"[1,2,3,4,5,6,7,8,9,0,1]", Bounds(values=10))


def test_a_body_becomes_its_dataclass() -> None:
    asked = parse(Asked, b'{"name": "a", "inner": {"count": 2, "share": 1}, "words": ["x"]}', Bounds())
    assert asked == Asked("a", Inner(2, 1.0), ("x",))
    assert isinstance(asked.inner and asked.inner.share, float)


def test_every_problem_is_reported_at_once_with_its_field() -> None:
    with pytest.raises(BadInput) as caught:
        parse(Asked, b'{"inner": {"count": 1.5, "shar": 2}, "words": [1]}', Bounds())
    told = caught.value.message.split("; ")
    assert [one.partition(":")[0] for one in told] == ["name", "inner.count", "inner.shar", "words[0]"]
    assert "did you mean `share`?" in caught.value.message


def test_what_a_dataclass_does_not_print_is_not_repeated() -> None:
    with pytest.raises(BadInput) as caught:
        parse(Asked, b'{"name": "a", "secrets": {"KEY": ["s3cret"], "s3cret": 1}}', Bounds())
    assert "secrets" in caught.value.message
    assert "s3cret" not in caught.value.message


def test_the_document_says_what_is_taken() -> None:
    shape = kind_for(Asked).schema()
    assert (shape["required"], shape["additionalProperties"]) == (["name"], False)
    assert shape["properties"]["inner"]["anyOf"][0]["properties"]["count"] == {"type": "integer"}
