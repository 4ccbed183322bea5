"""Each kind of value parses what people write, and reports what it expected where it cannot."""

from __future__ import annotations

from decimal import Decimal
from enum import StrEnum
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.model.job import fields
from stoker.model.job.fields import Either, FieldKind, ListOf, MapOf, Maybe, Problems
from stoker.model.job.job import DataInput, Spot, SpotOrNot
from stoker.model.job.sections import TargetText
from stoker.model.job.values import Choice, Duration, FolderInTree, Money, Scalar, Text, Whole


class Colour(StrEnum):
    RED = "red"
    GREEN = "green"


ALL: list[FieldKind] = [
    Text(),
    Text("digits", r"\d+"),
    Whole(1),
    Duration(),
    Money(),
    Choice(Colour),
    Maybe(Whole()),
    Either(Whole(), Choice(Colour)),
    ListOf(Whole()),
    MapOf(Whole(), "[a-z]+", "a name"),
    fields.Record(Spot),
    fields.Record(DataInput, Text("a path"), lambda text: {"path": text}),
    SpotOrNot(),
    FolderInTree(),
    Scalar(),
    TargetText(),
]
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
plain = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(scalars, inner, max_size=3), max_leaves=8
)


def refused(kind: FieldKind, value: Any) -> list[str]:
    with pytest.raises(Problems) as found:
        kind.read(value, "field")
    return [str(problem) for problem in found.value.problems]


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: type(kind).__name__)
@settings(deadline=None)
@given(value=plain)
def test_a_kind_reads_or_names_the_problem_and_reads_what_it_has_read(kind: FieldKind, value: Any) -> None:
    try:
        read = kind.read(value, "field")
    except Problems as found:
        assert found.problems
        assert all(one.field.startswith("field") and one.found and one.expected for one in found.problems)
        return
    assert kind.read(read, "field") == read


@pytest.mark.parametrize(
    ("kind", "value", "read"),
    [
        (Text(), " two words ", " two words "),
        (Whole(1), 1, 1),
        (Whole(0), "12", 12),
        (Duration(), "90s", 90.0),
        (Duration(), "1h30m", 5400.0),
        (Duration(), "1d 2h 3m 4s", 93784.0),
        (Duration(), "0.5h", 1800.0),
        (Duration(), 45, 45.0),
        (Money(), "$5", Decimal(5)),
        (Money(), "0.50", Decimal("0.50")),
        (Money(), " $ 1.25 ", Decimal("1.25")),
        (Money(), 0.1, Decimal("0.1")),
        (Choice(Colour), "red", Colour.RED),
        (Maybe(Whole()), None, None),
        (Either(Whole(), Choice(Colour)), "green", Colour.GREEN),
        (ListOf(Whole()), [1, "2"], (1, 2)),
        (ListOf(Whole()), 3, (3,)),
        (MapOf(Whole(), "[a-z]+", "a name"), {"a": "1"}, {"a": 1}),
        (SpotOrNot(), True, Spot()),
        (SpotOrNot(), "true", Spot()),
        (SpotOrNot(), False, False),
        (SpotOrNot(), "false", False),
        (SpotOrNot(), {"max_price": "$0.50"}, Spot(max_price=Decimal("0.50"))),
        (FolderInTree(), "./out//model/", "out/model"),
        (Scalar(), True, "true"),
        (Scalar(), 1.5, "1.5"),
        (Scalar(), "", ""),
    ],
)
def test_what_people_write_is_read(kind: FieldKind, value: Any, read: Any) -> None:
    assert kind.read(value, "field") == read


@pytest.mark.parametrize(
    ("kind", "value", "problem"),
    [
        (Text(), 1.10, "field: found `1.1`, expected text"),
        (Text(), "  ", "field: found `  `, expected text"),
        (Text(), None, "field: found nothing, expected text"),
        (Text("digits", r"\d+"), "12a", "field: found `12a`, expected digits"),
        (Whole(1), 0, "field: found `0`, expected a whole number, 1 or more"),
        (Whole(1), True, "field: found `true`, expected a whole number, 1 or more"),
        (Whole(1), 1.0, "field: found `1.0`, expected a whole number, 1 or more"),
        (Duration(), "soon", "field: found `soon`, expected a time such as `90s`, `30m`, `1h30m` or `2d`"),
        (Duration(), "", "field: found ``, expected a time such as `90s`, `30m`, `1h30m` or `2d`"),
        (Duration(), 0, "field: found `0`, expected a time such as `90s`, `30m`, `1h30m` or `2d`"),
        (Duration(), "1h1h", "field: found `1h1h`, expected a time such as `90s`, `30m`, `1h30m` or `2d`"),
        (Money(), "5 EUR", f"field: found `5 EUR`, expected {Money().elsewhere.expected}"),
        (Money(), "€5", f"field: found `€5`, expected {Money().elsewhere.expected}"),
        (Money(), "five", "field: found `five`, expected an amount in dollars such as `$5` or `0.50`"),
        (Money(), "-1", "field: found `-1`, expected an amount in dollars such as `$5` or `0.50`"),
        (Money(), "inf", "field: found `inf`, expected an amount in dollars such as `$5` or `0.50`"),
        (Choice(Colour), "rad", "field: found `rad`, expected one of `red`, `green` (did you mean `red`?)"),
        (Choice(Colour), ["red"], "field: found a list of 1, expected one of `red`, `green`"),
        (ListOf(Whole()), [1, "x"], "field[1]: found `x`, expected a whole number, 0 or more"),
        (MapOf(Whole(), "[a-z]+", "a name"), {"A": 1}, "field.A: found `A`, expected a name"),
        (MapOf(Whole(), "[a-z]+", "a name"), {"a": -1}, "field.a: found `-1`, expected a whole number, 0 or more"),
        (fields.Record(Spot), {"x": 1}, "field.x: found an unknown key, expected one of max_price, fallback"),
        (FolderInTree(), "../up", "field: found `../up`, expected a relative path inside the working directory"),
        (FolderInTree(), "/abs", "field: found `/abs`, expected a relative path inside the working directory"),
        (FolderInTree(), ".", "field: found `.`, expected a relative path inside the working directory"),
        (FolderInTree(), "C:\\x", "field: found `C:\\\\x`, expected a relative path inside the working directory"),
        (Scalar(), None, "field: found nothing, expected text or a number"),
    ],
)
def test_what_cannot_be_read_is_explained(kind: FieldKind, value: Any, problem: str) -> None:
    assert refused(kind, value) == [problem]


def test_every_problem_of_a_list_or_mapping_is_shown_at_once() -> None:
    assert len(refused(ListOf(Whole()), ["x", 1, "y"])) == 2
    assert len(refused(MapOf(Whole(), "[a-z]+", "a name"), {"a": "x", "B": 1, "c": "y"})) == 3


@pytest.mark.parametrize("kind", [Whole(), Duration(), Money(), Scalar()], ids=lambda kind: type(kind).__name__)
@pytest.mark.parametrize("digits", [400, 5000])
def test_numbers_of_any_length_are_refused_and_not_a_crash(kind: FieldKind, digits: int) -> None:
    number = 10**digits
    if isinstance(kind, Scalar) and digits == 400:
        assert kind.read(number, "field") == str(number)
    else:
        assert len(refused(kind, number)) == 1


@pytest.mark.parametrize("kind", [Text(), Scalar(), FolderInTree()], ids=lambda kind: type(kind).__name__)
def test_text_that_is_not_unicode_is_refused(kind: FieldKind) -> None:
    """Bytes of a command line that are not UTF-8 become lone surrogates, which no file or database can store."""
    assert len(refused(kind, "caf\udce9")) == 1


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "nothing"),
        (True, "`true`"),
        ({"a": 1}, "a mapping with 1 key"),
        ({}, "a mapping with 0 keys"),
        ([1, 2], "a list of 2"),
        ("a\nb", "`a\\nb`"),
        ("x" * 100, f"`{'x' * 57}...`"),
        (1.5, "`1.5`"),
    ],
)
def test_values_are_shown_short_and_on_one_line(value: Any, text: str) -> None:
    assert fields.shown(value) == text


def test_the_nearest_name_is_one_that_was_probably_meant() -> None:
    assert fields.nearest("evironment", ["environment", "env"]) == "environment"
    assert fields.nearest("zzz", ["environment", "env"]) == ""


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: type(kind).__name__)
def test_every_kind_describes_itself(kind: FieldKind) -> None:
    assert kind.expected
    assert kind.schema()
