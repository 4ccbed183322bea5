"""Event files of our own, read by TensorBoard's own loader and accumulator."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from stoker.client.api.reading import Point
from stoker.client.report.eventlogs import EventLog


def point(step: float | None, values: Mapping[str, float], attempt: int = 1, rank: int = 0) -> Point:
    return Point(attempt, rank, datetime.fromtimestamp(1000.0 + (step or 0) % 1000, UTC), step, values)


def shown(folder: Path, name: str) -> list[tuple[int, float]]:
    read = EventAccumulator(str(folder))
    read.Reload()
    return [(one.step, one.value) for one in read.Scalars(name)]


def test_values_have_the_steps_and_times_that_were_reported(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "ants-7")
    log.add([point(1, {"loss": 0.5, "val/acc": 0.25}), point(200, {"loss": 0.25})])
    log.add([point(1 << 40, {"loss": -1.5})])
    log.add([])
    assert shown(tmp_path / "ants-7", "loss") == [(1, 0.5), (200, 0.25), (1 << 40, -1.5)]
    assert shown(tmp_path / "ants-7", "val/acc") == [(1, 0.25)]
    read = EventAccumulator(str(tmp_path / "ants-7"))
    assert [one.wall_time for one in read.Reload().Scalars("loss")][:2] == [1001.0, 1200.0]


def test_steps_that_were_repeated_after_an_eviction_replace_the_earlier_ones(tmp_path: Path) -> None:
    log = EventLog(tmp_path)
    log.add(point(step, {"loss": 1.0}) for step in range(6))
    log.add(point(step, {"loss": 2.0}, attempt=2) for step in range(4, 8))
    assert shown(tmp_path, "loss") == [*((step, 1.0) for step in range(4)), *((step, 2.0) for step in range(4, 8))]


def test_parts_of_an_epoch_and_missing_steps_grow(tmp_path: Path) -> None:
    log = EventLog(tmp_path)
    log.add([point(step, {"a": float(number)}) for number, step in enumerate((1, 1.25, 1.5, 2))])
    log.add([point(None, {"b": 0.0}), point(None, {"b": 1.0})])
    assert shown(tmp_path, "a") == [(1, 0.0), (2, 1.0), (3, 2.0), (4, 3.0)]
    assert shown(tmp_path, "b") == [(0, 0.0), (1, 1.0)]


def test_other_ranks_are_apart(tmp_path: Path) -> None:
    EventLog(tmp_path).add([point(1, {"loss": 0.5}), point(1, {"loss": 0.75}, rank=3)])
    assert shown(tmp_path / "rank-3", "loss") == [(1, 0.75)]


def test_numbers_that_no_float_holds_are_written_all_the_same(tmp_path: Path) -> None:
    EventLog(tmp_path).add([point(1, {"a": math.nan}), point(2, {"a": 1e300}), point(3, {"a": -1e300})])
    first, *others = shown(tmp_path, "a")
    assert math.isnan(first[1]) and others == [(2, math.inf), (3, -math.inf)]
