"""What a run has measured, as programs read it."""

from datetime import UTC, datetime
from math import isnan, nan

from stoker.client.api.reading import Metrics, Point

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def points(*rows: tuple[int, float | None, float]) -> Metrics:
    return Metrics(Point(attempt, 0, NOW, step, {"loss": value}) for attempt, step, value in rows)


def test_a_step_done_again_after_an_eviction_counts_once() -> None:
    told = points((1, 1, 0.9), (1, 2, 0.8), (1, 3, 0.7), (2, 2, 0.81), (2, 3, 0.71))
    assert told.series("loss") == [(1, 0.9), (2, 0.81), (3, 0.71)]
    assert len(told) == 5, "every point that was reported is still there"


def test_values_without_a_step_are_all_kept() -> None:
    assert points((1, None, 0.9), (2, None, 0.8)).series("loss") == [(None, 0.9), (None, 0.8)]


def test_what_is_not_a_number_is_shown_as_such() -> None:
    told = points((1, 1, nan))
    assert isnan(told.last["loss"])
    assert repr(told) == "Metrics(1 points; last: loss=nan)"


def test_a_frame_has_a_row_for_every_point() -> None:
    frame = points((1, 1, 0.9), (1, 2, 0.8)).frame()
    assert list(frame.columns) == ["attempt", "rank", "at", "step", "loss"]
    assert list(frame["loss"]) == [0.9, 0.8]
