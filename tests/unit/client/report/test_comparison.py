from __future__ import annotations

from collections.abc import Callable

from stoker.client.report.comparison import Change, MetricPair, compare
from stoker.model.run.report import MetricSummary
from stoker.model.run.run import Run
from stoker.model.snapshot import Entry, EntryKind, Snapshot

EMPTY = Snapshot(())


def test_two_runs_of_the_same_thing_do_not_differ(make_run: Callable[..., Run]) -> None:
    code = Snapshot((Entry("train.py", sha256="a"),))
    found = compare(make_run(1), make_run(2), code, code)
    assert found.same
    assert (found.first, found.second) == ("ants-1", "ants-2")


def test_files_added_removed_and_changed_are_named(make_run: Callable[..., Run]) -> None:
    first = Snapshot((Entry("train.py", sha256="a"), Entry("old.py", sha256="b"), Entry("same.py", sha256="c")))
    second = Snapshot((Entry("train.py", sha256="x"), Entry("new.py", sha256="d"), Entry("same.py", sha256="c")))
    assert compare(make_run(1), make_run(2), first, second).code == (
        Change("new.py", None, "d"),
        Change("old.py", "b", None),
        Change("train.py", "a", "x"),
    )


def test_links_and_modes_count_as_code(make_run: Callable[..., Run]) -> None:
    first = Snapshot((Entry("run.sh", sha256="a"), Entry("link", EntryKind.LINK, target="x")))
    second = Snapshot((Entry("run.sh", sha256="a", executable=True), Entry("link", EntryKind.LINK, target="y")))
    assert compare(make_run(1), make_run(2), first, second).code == (
        Change("link", "link to x", "link to y"),
        Change("run.sh", "a", "a executable"),
    )


def test_flags_are_compared_one_by_one(make_run: Callable[..., Run]) -> None:
    first = make_run(1, job={"run": "python train.py --epochs 10 --lr=0.1 --verbose"})
    second = make_run(2, job={"run": "python train.py --lr 0.2 --epochs 10 --shift -3"})
    assert compare(first, second, EMPTY, EMPTY).arguments == (
        Change("--lr", "0.1", "0.2"),
        Change("--shift", None, "-3"),
        Change("--verbose", "", None),
    )


def test_another_program_is_shown_whole(make_run: Callable[..., Run]) -> None:
    first, second = make_run(1, job={"run": "python a.py"}), make_run(2, job={"run": "python b.py"})
    assert compare(first, second, EMPTY, EMPTY).arguments == (Change("run", "python a.py", "python b.py"),)


def test_a_command_too_clever_to_take_apart_is_shown_whole(make_run: Callable[..., Run]) -> None:
    for one, other in (("a 'b", "a b"), ("x --a 1 --a 2", "x --a 1"), ("x  --a", "x --a")):
        first, second = make_run(1, job={"run": one}), make_run(2, job={"run": other})
        assert compare(first, second, EMPTY, EMPTY).arguments == (Change("run", one, other),)


def test_fields_of_the_job_are_named_as_in_the_file(make_run: Callable[..., Run]) -> None:
    first = make_run(1, job={"spot": {"max_price": "0.5"}, "env": {"A": "1"}, "checkpoints": ["x", "y"]})
    second = make_run(2, job={"env": {"A": "2"}, "retries": 3, "checkpoints": ["x"]})
    assert compare(first, second, EMPTY, EMPTY).job == (
        Change("checkpoints", "x, y", "x"),
        Change("env.A", "1", "2"),
        Change("retries", "0", "3"),
        Change("spot.fallback", "none", None),
        Change("spot.max_price", "0.5", None),
    )


def test_software_and_data_are_compared(make_run: Callable[..., Run]) -> None:
    first = make_run(
        1,
        packages={"python": "3.11.7", "torch": "2.4", "numpy": "2"},
        python="/a/python",
        data={"x": "/d"},
        data_marks={"x": "3 files, 10 bytes"},
    )
    second = make_run(
        2,
        packages={"python": "3.12.1", "torch": "2.5", "numpy": "2"},
        python="/b/python",
        data={"x": "/d"},
        data_marks={"x": "4 files, 12 bytes"},
    )
    found = compare(first, second, EMPTY, EMPTY)
    assert found.packages == (Change("torch", "2.4", "2.5"),)
    assert found.python == (Change("path", "/a/python", "/b/python"), Change("version", "3.11.7", "3.12.1"))
    assert found.data == (Change("x", "/d (3 files, 10 bytes)", "/d (4 files, 12 bytes)"),)
    assert not found.same


def test_metrics_stand_side_by_side_with_the_best_of_each(make_run: Callable[..., Run]) -> None:
    def summary(last: float, least: float, most: float) -> MetricSummary:
        return MetricSummary(last=last, least=least, most=most, count=3)

    first = make_run(1, metrics={"val_loss": summary(0.5, 0.4, 2.0), "acc": summary(0.8, 0.1, 0.9)})
    second = make_run(2, metrics={"val_loss": summary(0.3, 0.2, 2.0), "speed": summary(9, 8, 10)})
    assert compare(first, second, EMPTY, EMPTY).metrics == (
        MetricPair("val_loss", 0.5, 0.3, 0.4, 0.2),
        MetricPair("acc", 0.8, None, 0.9, None),
        MetricPair("speed", None, 9, None, 10),
    )


def test_the_jobs_own_target_says_what_is_better(make_run: Callable[..., Run]) -> None:
    metrics = {"speed": MetricSummary(last=5, least=1, most=9, count=3)}
    slow = make_run(1, job={"stop_when": "speed < 2"}, metrics=metrics)
    (pair,) = compare(slow, make_run(2, metrics=metrics), EMPTY, EMPTY).metrics
    assert (pair.first_best, pair.second_best) == (1, 9)
