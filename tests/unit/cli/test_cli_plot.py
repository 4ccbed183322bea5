"""Curves in the terminal."""

from __future__ import annotations

import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.cli.view.portrait import labels, plot


def dots(lines: list[str]) -> int:
    return sum((ord(char) - 0x2800).bit_count() for line in lines for char in line if 0x2800 <= ord(char) < 0x2900)


def test_a_rising_curve_goes_from_the_lower_left_to_the_upper_right() -> None:
    lines = plot([(step, step * 2.0) for step in range(11)], 40, 5)
    assert lines[0].startswith("20 ┤")
    assert lines[2].startswith("10 ┤")
    assert lines[4].startswith(" 0 ┤⣀")
    assert lines[0].endswith(("⠉", "⠒⠉", "⠊"))
    assert lines[5].startswith("   └──")
    assert lines[6].split() == ["0", "step", "10"]


def test_one_point_is_one_dot() -> None:
    lines = plot([(5, 1.25)], 40, 5)
    assert dots(lines) == 1
    assert lines[2].startswith("1.25 ┤")
    assert lines[-1].strip() == "step 5"


def test_a_constant_series_is_a_level_line_with_one_label() -> None:
    lines = plot([(step, 3.0) for step in range(5)], 40, 5)
    assert [line[:3] for line in lines[:5]] == ["  │", "  │", "3 ┤", "  │", "  │"]
    assert set(lines[2][3:]) == {"⠒"}


@pytest.mark.parametrize("height", range(3, 20))
def test_labels_stand_beside_their_values(height: int) -> None:
    level = plot([(step, 3.0) for step in range(5)], 40, height)
    assert [line for line in level if line.startswith("3 ┤") and dots([line]) > 10]
    middle = plot([(0, 0.0), (1, 1.0), (2, 1.0), (3, 2.0)], 40, height)
    assert [line for line in middle if line.startswith("1 ┤") and dots([line]) > 10]


def test_what_is_not_finite_is_left_out_and_counted() -> None:
    lines = plot([(0, 1.0), (1, math.nan), (2, math.inf), (3, 2.0)], 40, 5)
    assert lines[-1].strip() == "2 of 4 values are NaN or infinite"
    assert plot([(0, math.nan)], 40, 5) == ["nothing to plot: all 1 values are NaN or infinite"]
    assert plot([], 40, 5) == ["nothing to plot: no values"]


def test_points_are_counted_where_not_all_have_a_step() -> None:
    lines = plot([(None, 1.0), (7, 2.0), (None, 3.0)], 40, 5)
    assert lines[-1].split() == ["0", "points", "2"]


def test_steps_repeated_by_a_later_attempt_stay_in_their_place() -> None:
    once = plot([(step, float(step)) for step in range(10)], 40, 6)
    again = plot([*((step, float(step)) for step in range(6)), *((step, float(step)) for step in range(4, 10))], 40, 6)
    assert once == again


def test_a_hundred_thousand_points_are_drawn_at_once() -> None:
    series = [(step, math.sin(step / 5000)) for step in range(100_000)]
    start = time.perf_counter()
    lines = plot(series, 100, 15)
    assert time.perf_counter() - start < 2.0
    assert len(lines) == 17


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((1.0, 2.0), ["1", "2"]),
        ((0.5, 0.25), ["0.5", "0.25"]),
        ((0.99991, 0.99992), ["0.99991", "0.99992"]),
        ((99_999.0,), ["99999"]),
    ],
)
def test_labels_have_as_few_digits_as_tell_them_apart(values: tuple[float, ...], expected: list[str]) -> None:
    assert labels(values) == expected


@given(st.lists(st.tuples(st.none() | st.floats(), st.floats()), max_size=50), st.integers(1, 200), st.integers(1, 50))
def test_any_series_can_be_drawn(series: list[tuple[float | None, float]], width: int, height: int) -> None:
    lines = plot(series, width, height)
    assert lines
    if len(lines) > 1:
        assert dots(lines) > 0
