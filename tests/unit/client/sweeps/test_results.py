"""Results: groups with mean and spread, the best by a metric, and plots of them."""

from __future__ import annotations

import csv
import io
import statistics
from decimal import Decimal
from html.parser import HTMLParser
from typing import Any

import pytest

from stoker.cli.commands.sweep.results import _csv
from stoker.cli.view import charts
from stoker.client.sweeps import page
from stoker.client.sweeps.results import Results, front, points, read, scaling
from stoker.errors import BadInput, NotFound
from stoker.model.cause import Cause
from stoker.model.run.report import MetricSummary
from stoker.model.run.run import RunState
from stoker.model.run.sweep import ResultRow


def row(number: int, values: dict[str, Any], usd: str = "0", nodes: int = 1, **metrics: float) -> ResultRow:
    found = {name: MetricSummary(value, value - 1, value + 1, 3, 3.0) for name, value in metrics.items()}
    texts = {name: str(value) for name, value in values.items()}
    return ResultRow(
        f"ants-{number}", number, RunState.SUCCEEDED, texts, found, Decimal(usd), 10.0 / nodes, nodes, "ants-s1"
    )


def accuracies() -> list[ResultRow]:
    """0.1 is the better rate; seed 2 is the better seed."""
    return [
        row(10 * int(10 * rate) + seed, {"lr": rate, "seed": seed}, usd=str(rate), accuracy=rate + seed / 100, epoch=3)
        for rate in (0.1, 0.5)
        for seed in (1, 2, 3)
    ]


def test_runs_that_differ_only_in_their_seed_are_a_group_with_mean_and_spread_the_best_first() -> None:
    results = read("ants", accuracies())
    assert (results.metric, results.by) == ("accuracy", ("lr",))
    first, second = results.groups
    assert first.values == {"lr": "0.5"} and second.values == {"lr": "0.1"}
    assert first.mean == pytest.approx(0.52) and first.spread == pytest.approx(statistics.stdev([0.51, 0.52, 0.53]))
    assert first.best and first.best.name == "ants-53" and results.best is first.best
    assert first.seconds == 10.0 and first.usd == Decimal("0.5")


def test_less_is_better_of_a_loss_and_of_what_is_asked_for_with_a_minus() -> None:
    rows = [row(1, {"lr": 1}, loss=0.5, score=2), row(2, {"lr": 2}, loss=0.7, score=3)]
    assert [read("ants", rows, "loss").groups[0].values["lr"], read("ants", rows, "score").groups[0].values["lr"]] == [
        "1",
        "2",
    ]
    assert read("ants", rows, "-score").groups[0].values["lr"] == "1"


def test_a_run_without_the_metric_counts_in_its_group_and_never_is_the_best() -> None:
    rows = [row(1, {"lr": 1}, acc=0.5), row(2, {"lr": 1}), row(3, {"lr": 2}), row(4, {"lr": 3}, acc=float("nan"))]
    results = read("ants", rows, "acc")
    assert results.groups[0].figures == (0.5,) and len(results.groups[0].runs) == 2
    assert [one.mean for one in results.groups[1:]] == [None, None]
    assert results.best and results.best.name == "ants-1"


@pytest.mark.parametrize(("metric", "by"), [("acuracy", ()), ("", ("rate",))])
def test_a_metric_that_no_run_reports_and_an_unknown_parameter_are_refused_with_the_nearest(
    metric: str, by: tuple[str, ...]
) -> None:
    with pytest.raises(NotFound) as error:
        read("ants", accuracies(), metric, by)
    assert error.value.cause == Cause.NO_SUCH_METRIC and error.value.hint


def test_records_have_every_value_and_metric_of_every_run() -> None:
    records = read("ants", accuracies()).records()
    assert records[0] == {
        "run": "ants-11",
        "state": "succeeded",
        "sweep": "ants-s1",
        "lr": "0.1",
        "seed": "1",
        "accuracy": 0.11,
        "epoch": 3,
        "seconds": 10.0,
        "usd": 0.1,
        "nodes": 1,
    }


def test_a_metric_with_the_name_of_a_parameter_does_not_replace_its_value() -> None:
    rows = [row(1, {"lr": 0.1, "nodes": 2}, acc=1, lr=0.05), row(2, {"lr": 0.2, "nodes": 4}, acc=2, lr=0.05, seconds=3)]
    first, second = read("ants", rows).records()
    assert (first["lr"], first["metric.lr"], first["nodes"], first["matrix.nodes"]) == ("0.1", 0.05, 1, "2")
    assert (second["seconds"], second["metric.seconds"]) == (10.0, 3)
    frame = read("ants", rows).frame()
    assert list(frame["lr"]) == [0.1, 0.2] and list(frame["matrix.nodes"]) == [2, 4]


def test_a_spreadsheet_and_a_terminal_take_nothing_of_a_csv_for_a_command() -> None:
    odd: dict[str, Any] = {"=HYPERLINK(1)": 1, "\x1b]0;loss\x07": 2}
    rows = [row(1, {"lr": "-1e-3", "note": "@SUM(A1)"}, **odd)]
    head, cells = list(csv.reader(io.StringIO(_csv(read("ants", rows)))))
    assert (
        dict(zip(head, cells, strict=True)).items()
        >= {"lr": "-1e-3", "note": "'@SUM(A1)", "'=HYPERLINK(1)": "1"}.items()
    )
    assert all(name.isprintable() for name in head)


def test_runs_that_no_other_one_beats_in_cost_and_result_are_the_front() -> None:
    axis, found = front(read("ants", accuracies()))
    assert axis == "usd" and [one.name for _, _, one, best in found if best] == ["ants-13", "ants-53"]


def test_scaling_compares_with_the_fewest_nodes() -> None:
    rows = [row(number, {"nodes": nodes}, nodes=nodes, acc=1) for number, nodes in enumerate((2, 4, 4), 1)]
    two, four = scaling(read("ants", rows))
    assert (two.nodes, two.efficiency, four.nodes) == (2, 1.0, 4)
    assert (four.faster, four.efficiency) == (2.0, 1.0)


def drawn(results: Results) -> dict[str, list[str]]:
    dots = [(x, y) for x, y, _ in points(results)]
    return {
        "scatter": charts.scatter(dots, "lr", "accuracy", 80),
        "box": charts.boxes(results, 80),
        "scaling": charts.bars(results, 80),
        "parallel": charts.parallel(results, 80),
        "pareto": charts.pareto(results, 80),
    }


@pytest.mark.parametrize("count", [1, 6])
def test_every_plot_fits_the_terminal_also_with_a_single_run(count: int) -> None:
    for name, lines in drawn(read("ants", accuracies()[:count])).items():
        assert lines and max(map(len, lines)) <= 80, name


def test_a_box_spans_the_least_to_the_most_with_the_median() -> None:
    best, worst = charts.boxes(read("ants", accuracies()), 100)[1:3]
    assert "0.52 (n=3)" in best and "0.12 (n=3)" in worst
    assert best.index("┃") > worst.index("┃")


def test_nothing_to_plot_is_told() -> None:
    with pytest.raises(BadInput) as error:
        points(read("ants", [row(1, {"model": "small"}, acc=1)]))
    assert error.value.cause == Cause.NOTHING_TO_PLOT


class Tags(HTMLParser):
    """Fails for a tag that is not closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.fetched += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "br", "hr", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_needs_nothing_else_and_shows_names_as_text() -> None:
    rows = [*accuracies(), row(99, {"lr": "<script>alert(1)</script>", "seed": 1}, accuracy=0.2)]
    text = page.page(read("ants", rows, by=("lr", "seed")))
    tags = Tags()
    tags.feed(text)
    assert not tags.open and not tags.fetched and "<script>" not in text
    assert text.count("<polyline") == 7 and "ants-53" in text
