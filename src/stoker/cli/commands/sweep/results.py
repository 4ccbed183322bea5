"""`stoker results`: the runs of an experiment compared, as a table, plots, a page or data."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path

import click

from stoker.cli.command import NEWEST, Command, json_option
from stoker.cli.view import terminal, words
from stoker.cli.view.terminal import one_line, paint_data, say, show, show_json, write, write_file
from stoker.cli.view.words import Column, TableCell, table
from stoker.client.api.client import Client
from stoker.client.report.spelling import duration, usd
from stoker.client.sweeps.results import Results, number, numeric, points
from stoker.errors import BadInput
from stoker.model.cause import Cause

_PLOTS = ("scatter", "box", "scaling", "parallel", "pareto")
_SHOWN = 40  # groups in a table


@click.command(
    cls=Command,
    examples=[
        ("stoker results ants", "the means over seeds, the best first"),
        ("stoker results ants --metric=-loss --by lr,width", "another metric, of which less is better"),
        ("stoker results ants-s1 --html ants.html", "one sweep, everything as a page"),
        ("stoker results ants --csv > ants.csv", "one line for each run"),
    ],
)
@click.argument("name", metavar="[EXPERIMENT]", required=False, default=NEWEST)
@click.option("--metric", default="", metavar="NAME", help="Compare by this metric; -NAME if less is better.")
@click.option("--by", default="", metavar="NAMES", help="Group by these parameters [default: all but seeds].")
@click.option("--plot", type=click.Choice(_PLOTS), help="Draw a plot instead of the table.")
@click.option("-a", "--all", "everything", is_flag=True, help=f"Show all groups, not only the best {_SHOWN}.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV: one line for each run.")
@click.option("--html", type=click.Path(path_type=Path), metavar="FILE", help="Write a page with the tables and plots.")
@json_option()
def command(
    name: str,
    metric: str,
    by: str,
    plot: str | None,
    everything: bool,
    as_csv: bool,
    html: Path | None,
    as_json: bool,
) -> None:
    """Compare the runs of an experiment or a sweep.

    Runs with the same values form a group, whatever their seed: the table has the mean of each group and its standard
    deviation, the best first, with time and cost per run. Values are those of the matrix, or the options in the
    command of runs that are no trials. A metric counts with its last value of each run. Without EXPERIMENT: the newest
    sweep.
    """
    names = [one.strip() for one in by.split(",") if one.strip()]
    results = Client.connect().results(name, metric=metric, by=names)
    if html:
        from stoker.client.sweeps import page  # few results are a page

        write_file(html, page.page(results), "--html")
        say(f"wrote {html}: open it in a browser")
    if as_json:
        show_json({"name": results.name, "metric": results.metric, "by": results.by, "groups": _plain(results)})
    elif as_csv:
        write(_csv(results).encode(errors="replace"))
    elif plot:
        for line in _drawn(results, plot):
            show(line)
    elif not html:
        _tell(results, everything)


def _tell(results: Results, everything: bool) -> None:
    groups = results.groups if everything else results.groups[:_SHOWN]
    wide = [*(Column(name.upper(), least=4) for name in results.by), Column((results.metric or "metric").upper())]
    figures = [Column(title, right=True) for title in ("SPREAD", "RUNS", "TIME", "COST")]
    rows: list[list[TableCell | str]] = []
    for one in groups:
        mean = words.number(one.mean) if one.mean is not None else ""
        spread = f"± {one.spread:.2g}" if one.spread is not None else ""
        cost = usd(one.usd) if one.usd else ""
        texts = [one_line(text) for text in one.values.values()]
        rows.append([*texts, mean, spread, str(len(one.runs)), duration(one.seconds), cost])
    for line in table([*wide, *figures], rows, terminal.width(), paint_data):
        show(line)
    if len(groups) < len(results.groups):
        say(f"{len(results.groups) - len(groups):,} more groups: -a shows them")
    say(_summary(results))


def _summary(results: Results) -> str:
    states = ", ".join(f"{number} {state}" for state, number in results.states.items())
    best, cost = results.best, f", {usd(results.usd)} in all" if results.usd else ""
    figure = results.figure(best) if best else None
    told = f"; best {results.metric}: {words.number(figure)}, {best.name}" if best and figure is not None else ""
    return f"{words.count(len(results.rows), 'run')}: {states}{cost}{told}"


def _drawn(results: Results, plot: str) -> list[str]:
    from stoker.cli.view import charts  # most results are a table

    width = min(terminal.width(), 120)
    if plot == "scatter":
        dots = [(x, y) for x, y, _ in points(results)]
        return charts.scatter(dots, numeric(results), results.metric, width)
    if not any(one.figures for one in results.groups) and plot != "scaling":
        what = f"no run of `{results.name}` has reported a metric so far"
        raise BadInput(what, hint=f"stoker results {results.name}", cause=Cause.NOTHING_TO_PLOT)
    draw = {"box": charts.boxes, "scaling": charts.bars, "parallel": charts.parallel, "pareto": charts.pareto}[plot]
    return draw(results, width)


def _plain(results: Results) -> list[dict[str, object]]:
    return [
        {
            "values": one.values,
            "mean": one.mean if one.mean is not None else math.nan,
            "spread": one.spread if one.spread is not None else math.nan,
            "best": one.best.name if one.best else None,
            "seconds": one.seconds,
            "usd": one.usd,
            "runs": [
                {"name": run.name, "state": run.state, "values": run.values, "metrics": run.metrics} for run in one.runs
            ],
        }
        for one in results.groups
    ]


def _csv(results: Results) -> str:
    records = results.records()
    names = list(dict.fromkeys(name for record in records for name in record))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([_cell(name) for name in names])
    writer.writerows([_cell(record.get(name, "")) for name in names] for record in records)
    return text.getvalue()


def _cell(value: object) -> object:
    """Whoever opens the file in a spreadsheet runs no formula: scripts choose the names of metrics."""
    if not isinstance(value, str):
        return value
    text = one_line(value)
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) and not math.isfinite(number(text)) else text
