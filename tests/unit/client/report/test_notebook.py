from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from stoker.client.api.reading import Metrics, Point
from stoker.client.report import pages
from stoker.model.run.report import MetricSummary
from stoker.model.run.run import Run, RunState


def test_a_card_shows_state_time_metrics_and_lines(make_run: Callable[..., Run], now: datetime) -> None:
    metrics = {"val_loss": MetricSummary(last=0.123456, least=0, most=1, count=2)}
    run = make_run(1, state=RunState.RUNNING, started_at=now, metrics=metrics, reason="attempt 1 <is> running")
    card = pages.card(run, now + timedelta(seconds=3725), ["epoch 1", "<b>loud</b>"])
    for part in ("ants-1", "running", "1:02:05", "val_loss = 0.1235", "attempt 1 &lt;is&gt;", "epoch 1\n&lt;b&gt;loud"):
        assert part in card


def test_a_terminal_is_not_a_notebook() -> None:
    assert not pages.inside()


class Spoken:
    """A run that prints a few lines and then ends."""

    def __init__(self, facts: Run) -> None:
        self.facts = facts

    def logs(self, *, follow: bool) -> Iterator[bytes]:
        yield b"first\n10%\r50%\r100%\nsec"
        yield b"ond\n"


def test_the_live_card_is_replaced_in_place_and_once_more_at_the_end(make_run: Callable[..., Run]) -> None:
    shown: list[str] = []
    run: Any = Spoken(make_run(1))

    def display(first: str) -> Callable[[str], None]:
        shown.append(first)
        return shown.append

    with pages.Live(run, display, tick_s=0.001):
        while len(shown) < 3:
            pass
        run.facts = replace(run.facts, state=RunState.SUCCEEDED)
    assert "first\n100%\nsecond" in shown[-1]
    assert "succeeded" in shown[-1]


def test_metrics_are_a_sequence_with_series_and_a_frame(now: datetime) -> None:
    points = Metrics(
        [Point(1, 0, now, 1, {"loss": 3.0}), Point(1, 0, now, 2, {"loss": 2.0, "acc": 0.5}), Point(1, 0, now, None, {})]
    )
    assert points.last == {"loss": 2.0, "acc": 0.5}
    assert points.series("loss") == [(1, 3.0), (2, 2.0)]
    assert points.series("none") == []
    assert len(points) == 3 and len(points[1:]) == 2
    frame = points.frame()
    assert list(frame.columns) == ["attempt", "rank", "at", "step", "loss", "acc"]
    assert frame["loss"].max() == 3.0
