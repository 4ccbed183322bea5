"""Values as people read and write them."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.cli.view import words
from stoker.errors import BadInput

NOW = datetime(2025, 3, 1, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-3, "0.0 s"),
        (0.04, "0.0 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (59.4, "59 s"),
        (59.6, "1m 00s"),
        (250, "4m 10s"),
        (7500, "2h 05m"),
        (273_600, "3d 4h"),
    ],
)
def test_durations_have_two_units_at_most(seconds: float, text: str) -> None:
    assert words.duration(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(-5, "0s"), (0.5, "0s"), (59, "59s"), (60, "1m"), (7199, "1h"), (9e5, "10d")]
)
def test_an_age_has_one_unit(seconds: float, text: str) -> None:
    assert words.age(NOW - timedelta(seconds=seconds), NOW) == text


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0 B"), (812, "812 B"), (1000, "1.0 kB"), (999_600, "1.0 MB"), (34_200_000_000, "34 GB"), (10**18, "1000 PB")],
)
def test_sizes_are_decimal(size_bytes: int, text: str) -> None:
    assert words.size_text(size_bytes) == text


def test_one_is_singular() -> None:
    assert [words.count(number, "file") for number in (0, 1, 2000)] == ["0 files", "1 file", "2,000 files"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (25.0, "25"), (0.912345, "0.9123"), (1e-9, "1e-09"), (math.nan, "nan"), (-math.inf, "-inf")],
)
def test_numbers_have_four_digits(value: float, text: str) -> None:
    assert words.number(value) == text


def test_the_day_is_named_where_it_is_another() -> None:
    assert len(words.clock(NOW, NOW)) == len("12:00:00")
    assert words.clock(NOW - timedelta(days=3), NOW).startswith("2025-02-26")


@pytest.mark.parametrize(("code", "name"), [(137, "SIGKILL"), (143, "SIGTERM"), (3, ""), (128, ""), (255, "")])
def test_a_killed_process_is_named_by_its_signal(code: int, name: str) -> None:
    assert words.signal_name(code) == name


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10m", NOW - timedelta(minutes=10)),
        ("1h30m", NOW - timedelta(minutes=90)),
        ("1h 30m", NOW - timedelta(minutes=90)),
        ("0.5s", NOW - timedelta(seconds=0.5)),
        ("2025-02-28T23:00:00Z", datetime(2025, 2, 28, 23, tzinfo=UTC)),
        ("2025-02-28 23:00+02:00", datetime(2025, 2, 28, 23, tzinfo=timezone(timedelta(hours=2)))),
        ("2025-02-28", datetime(2025, 2, 28).astimezone()),  # a local time is what is tested
    ],
)
def test_since_takes_a_time_ago_or_a_time(text: str, expected: datetime) -> None:
    assert words.moment(text, NOW) == expected


@pytest.mark.parametrize("text", ["", "yesterday", "10", "m10", "10m5h", "2025-13-01"])
def test_since_names_what_it_expected(text: str) -> None:
    with pytest.raises(BadInput, match="`10m`"):
        words.moment(text, NOW)


@given(st.floats(allow_nan=False, min_value=-1e12, max_value=1e12), st.integers(0, 10**18))
def test_every_value_has_words(seconds: float, size_bytes: int) -> None:
    assert words.duration(seconds)
    assert len(words.size_text(size_bytes)) <= 7


def test_a_time_ago_that_no_calendar_has_is_a_mistake_and_no_traceback() -> None:
    with pytest.raises(BadInput, match="--since"):
        words.moment("99999999999d", datetime(2026, 1, 1, tzinfo=UTC))
