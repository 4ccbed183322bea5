"""Metric points out of printed lines and `stoker.log`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.agent.shipping.metrics.points import LONGEST_LINE, Lines, MetricPoint, Summaries, logged, printed, progress
from stoker.checkpoint.surroundings import log, should_stop


def values(line: str) -> Mapping[str, float | None] | None:
    point = printed(line.encode(), 1.0, 0)
    return point.values if point else None


def test_numbers_of_a_printed_object_are_values() -> None:
    point = printed(b'{"loss": 0.5, "acc": 1, "name": "resnet", "done": true, "none": null}', 12.5, 3)
    assert point == MetricPoint(12.5, 3, None, {"loss": 0.5, "acc": 1.0})


@pytest.mark.parametrize("name", ["step", "epoch", "iteration", "global_step"])
def test_the_usual_names_are_taken_as_the_step(name: str) -> None:
    point = printed(json.dumps({name: 7, "loss": 0.5}).encode(), 1.0, 0)
    assert point == MetricPoint(1.0, 0, 7, {"loss": 0.5})


def test_an_epoch_beside_a_step_is_a_value() -> None:
    assert printed(b'{"epoch": 2, "step": 7}', 1.0, 0) == MetricPoint(1.0, 0, 7, {"epoch": 2.0})


def test_objects_are_flattened_one_level_deep() -> None:
    assert values('{"val": {"loss": 1, "more": {"deep": 2}}, "lr": 0.1}') == {"val/loss": 1.0, "lr": 0.1}


def test_what_json_cannot_hold_is_kept_as_nothing() -> None:
    assert values('{"loss": NaN, "grad": Infinity, "lr": 0.1}') == {"loss": None, "grad": None, "lr": 0.1}


@pytest.mark.parametrize(
    "line",
    ["{}", '{"a": "text"}', '{"step": 3}', '{"loss": NaN}', "{broken", "[1]", "1", '{"a": [1]}', "{" * 5000, ""],
)
def test_other_lines_are_no_points(line: str) -> None:
    assert values(line) is None


def test_a_number_too_large_for_a_float_is_no_value() -> None:
    assert values('{"big": 1' + "0" * 400 + ', "a": 1}') == {"a": 1.0}


def test_long_lines_are_ignored() -> None:
    assert values('{"a": 1, "text": "' + "x" * LONGEST_LINE + '"}') is None


def test_names_that_cannot_be_stored_are_changed() -> None:
    found = values('{"\\ud800": 1}')
    assert found == {"?": 1.0}


def test_a_logged_line_gives_its_point_back() -> None:
    line = b'{"at": 5.0, "step": 2, "rank": 1, "values": {"loss": 0.5, "bad": null}}'
    assert logged(line) == MetricPoint(5.0, 1, 2, {"loss": 0.5, "bad": None})


@pytest.mark.parametrize("line", [b"", b"{}", b'{"at": 1}', b'{"at": 1.0, "rank": "a", "values": {}}', b"{"])
def test_a_line_somebody_else_wrote_is_no_point(line: bytes) -> None:
    assert logged(line) is None


lines = st.lists(
    st.sampled_from([b'{"a": 1}', b"", b"text", b"{", b" {", b"x" * 20, b"{" + b"y" * 70000, b'{"b": 2}\r']), max_size=8
)


@given(lines, st.lists(st.integers(0, 200), max_size=6), st.booleans())
def test_lines_do_not_depend_on_the_pieces(written: list[bytes], cuts: list[int], objects_only: bool) -> None:
    data = b"".join(line + b"\n" for line in written)
    ends = sorted({min(cut, len(data)) for cut in cuts} | {len(data)})
    reader = Lines(objects_only=objects_only)
    found = [line for start, end in zip([0, *ends], ends, strict=False) for line in reader.feed(data[start:end])]
    short = [line for line in written if len(line) < LONGEST_LINE]
    assert found == [line for line in short if not objects_only or line.startswith(b"{")]


def test_summaries_leave_out_what_is_no_number() -> None:
    summaries = Summaries()
    for step, loss in enumerate([2.0, None, 1.0, 3.0]):
        summaries.add(MetricPoint(0.0, 0, step, {"loss": loss}))
    summary = summaries.now()["loss"]
    assert (summary.last, summary.least, summary.most, summary.count, summary.step) == (3.0, 1.0, 3.0, 3, 3)


def test_log_appends_a_line_that_the_agent_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_METRICS", str(tmp_path / "metrics"))
    monkeypatch.setenv("RANK", "2")
    log(step=4, loss=0.25, count=3)
    log(loss=math.nan)
    first, second = (logged(line) for line in (tmp_path / "metrics").read_bytes().splitlines())
    assert first and (first.rank, first.step, first.values) == (2, 4, {"loss": 0.25, "count": 3.0})
    assert second and (second.step, second.values) == (None, {"loss": None})


class Tensor:
    """Like a scalar of NumPy or PyTorch: not a number, but convertible to one."""

    def __float__(self) -> float:
        return 1.5


def test_log_outside_of_a_run_prints(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("STOKER_METRICS", raising=False)
    log(step=1, loss=Tensor())
    log(**{"hr@10": 0.5})
    assert capsys.readouterr().out == '{"step": 1, "loss": 1.5}\n{"hr@10": 0.5}\n'


@pytest.mark.parametrize("value", ["0.5", None, [1, 2], object()])
def test_log_names_the_metric_that_is_no_number(value: object) -> None:
    with pytest.raises(TypeError, match="`loss`"):
        log(loss=value)


def test_should_stop_once_the_file_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STOKER_STOP", raising=False)
    assert not should_stop()
    monkeypatch.setenv("STOKER_STOP", str(tmp_path / "stop"))
    assert not should_stop()
    (tmp_path / "stop").touch()
    assert should_stop()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b'{"progress": 0.25, "loss": 1.0}', 0.25),
        (b'{"step": 120, "total_steps": 480, "loss": 1.0}', 0.25),
        (b'{"epoch": 3, "total_epochs": 12, "loss": 1.0}', 0.25),
        (b'{"step": 900, "epoch": 3, "total_epochs": 12}', 0.25),
        (b'{"step": 480, "total_steps": 480}', 1.0),
        (b'{"loss": 1.0}', None),
        (b'{"progress": 1.5}', None),
        (b'{"progress": NaN, "loss": 1.0}', None),
        (b'{"step": 5, "total_steps": 0}', None),
        (b'{"step": 481, "total_steps": 480}', None),
        (b'{"total_steps": 480}', None),
    ],
)
def test_a_script_says_how_far_it_is_by_a_share_or_a_total(line: bytes, expected: float | None) -> None:
    point = printed(line, 0.0, 0)
    assert point is not None
    assert progress(point) == expected
