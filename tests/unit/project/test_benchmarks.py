"""What the benchmarks conclude from their samples. The benchmarks themselves are run by `make bench`."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT))  # the benchmarks are not part of what is installed

from benchmarks.commands import Command, CommandFailed, Playback, clean_environment, on_pipe, on_terminal  # noqa: E402
from benchmarks.measure import Figure, Goal, Plan, Result, interleave, over, percentile  # noqa: E402


def test_figure_is_judged_by_its_median_not_by_its_worst_round() -> None:
    figure = Figure("first line", "s", (0.1, 9.0, 0.2), Goal(at_most=0.25))
    assert figure.median == 0.2
    assert figure.verdict == "met"


@pytest.mark.parametrize(
    ("goal", "value", "met"),
    [
        (Goal(at_most=0.25), 0.25, True),
        (Goal(at_most=0.25), 0.2501, False),
        (Goal(at_least=40), 40, True),
        (Goal(at_least=40), 39.9, False),
        (Goal(at_most=0), 0, True),
        (Goal(at_most=0), 1, False),
    ],
)
def test_goal_includes_its_bound(goal: Goal, value: float, met: bool) -> None:
    assert goal.met(value) is met


def test_figure_without_goal_has_no_verdict() -> None:
    assert Figure("bare python", "s", (0.1,)).verdict == ""


def test_rounds_interleave_contestants_and_change_who_begins() -> None:
    order: list[str] = []

    def contestant(name: str) -> float:
        order.append(name)
        return len(order)

    contestants = {name: lambda name=name: contestant(name) for name in "abc"}
    samples = interleave(contestants, rounds=3, warm_up=1)
    assert order == ["c", "a", "b", "a", "b", "c", "b", "c", "a", "c", "a", "b"]
    assert samples == {"a": [4, 9, 11], "b": [5, 7, 12], "c": [6, 8, 10]}


def test_percentile_is_a_value_that_was_seen() -> None:
    values = [float(number) for number in range(1, 101)]
    assert percentile(values, 50) == 50
    assert percentile(values, 99) == 99
    assert percentile([7.0], 99) == 7


def test_over_compares_within_a_round() -> None:
    assert over([1.5, 3.0], [0.5, 1.0]) == [1.0, 2.0]


def test_quick_plan_is_smaller() -> None:
    assert Plan().size(200, 20) == 200
    assert Plan(quick=True).size(200, 20) == 20


def test_result_file_keeps_every_sample_and_what_is_needed_to_judge_it(tmp_path: Path) -> None:
    result = Result("submit", versions={"stoker": "0.1.0"}, started_at=datetime(2026, 1, 2, tzinfo=UTC))
    result.add("bare python", "s", [0.1, 0.3, 0.2])
    result.add("stoker", "s", [0.3, 0.5, 0.4], Goal(at_most=0.25))
    document = json.loads(result.save(tmp_path).read_text(encoding="utf-8"))
    assert (tmp_path / "submit.json").exists()
    assert document["date"] == "2026-01-02T00:00:00+00:00"
    assert document["versions"] == {"stoker": "0.1.0"}
    assert document["machine"].keys() == {"cpu", "cores", "memory_gb", "kernel", "python", "folder"}
    assert len(document["load"]["before"]) == len(document["load"]["after"]) == 3
    assert document["figures"] == [
        {"name": "bare python", "unit": "s", "median": 0.2, "goal": None, "verdict": "", "samples": [0.1, 0.3, 0.2]},
        {
            "name": "stoker",
            "unit": "s",
            "median": 0.4,
            "goal": {"at_most": 0.25},
            "verdict": "missed",
            "samples": [0.3, 0.5, 0.4],
        },
    ]


def test_table_shows_goal_and_verdict() -> None:
    result = Result("logs")
    result.add("stoker", "MB/s", [41.0], Goal(at_least=40))
    line = result.table().splitlines()[-1]
    assert line.split() == ["stoker", "41.0", "41.0", "…", "41.0", "MB/s", "1", "≥", "40.0", "met"]


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks" / "results").glob("*.json")), ids=lambda path: path.stem)
def test_kept_results_agree_with_their_samples(path: Path) -> None:
    document = json.loads(path.read_text(encoding="utf-8"))
    assert document["benchmark"] == path.stem
    for row in document["figures"]:
        figure = Figure(row["name"], row["unit"], tuple(row["samples"]), row["goal"] and Goal(**row["goal"]))
        assert figure.median == pytest.approx(row["median"], abs=1e-6)
        assert figure.verdict == row["verdict"]


def test_line_is_timed_by_its_last_byte() -> None:
    played = Playback(0.0, [(1.0, b"one\ntw"), (2.0, b"o hello\nrest")], 3.0)
    assert list(played.lines()) == [(1.0, b"one"), (2.0, b"two hello")]
    assert played.first_s(b"hello") == 2.0
    with pytest.raises(CommandFailed, match="never arrived"):
        played.first_s(b"goodbye")


def test_contestants_do_not_see_what_this_python_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("STOKER_HOME", "elsewhere")
    environment = clean_environment({"STOKER_SLOTS": "2"})
    assert "PYTHONDONTWRITEBYTECODE" not in environment
    assert "STOKER_HOME" not in environment
    assert environment["STOKER_SLOTS"] == "2"


def test_playback_holds_what_a_command_wrote_and_failure_shows_it(tmp_path: Path) -> None:
    command = Command("echo", ("sh", "-c", "echo hello"), tmp_path)
    assert on_pipe(command).output == b"hello\n"
    assert on_terminal(command).output == b"hello\r\n"
    with pytest.raises(CommandFailed, match="no luck"):
        on_pipe(Command("fails", ("sh", "-c", "echo no luck >&2; exit 3"), tmp_path))
