"""`stoker diff`: what differs between two runs."""

from __future__ import annotations

from collections.abc import Sequence

import click

from stoker.cli import terminal, words
from stoker.cli.command import Command, json_option, run_names
from stoker.cli.tables import Cell, Column, table
from stoker.cli.terminal import paint_data, say, show, show_json
from stoker.client.client import Client
from stoker.client.comparison import Change, Difference, MetricPair


@click.command(
    cls=Command,
    examples=[
        ("stoker diff ants-6 ants-7", "what changed, and what came of it"),
        ("stoker diff ants-6 ants-7 --json", "the same, for a program"),
    ],
)
@click.argument("first", metavar="RUN", shell_complete=run_names)
@click.argument("second", metavar="RUN", shell_complete=run_names)
@json_option()
def command(first: str, second: str, as_json: bool) -> None:
    """Show what differs between two runs.

    Compares the code, the arguments, the other fields of the job, the packages and the data, then the metrics.
    """
    difference = Client.connect().compare(first, second)
    if as_json:
        show_json({"difference": difference, "same": difference.same})
        return
    for line in lines(difference, terminal.width()):
        show(line)
    if difference.same:
        say("same code, job, packages and data")


def lines(found: Difference, width: int) -> list[str]:
    text: list[str] = []
    parts = (
        ("code", [_file(change) for change in found.code]),
        ("arguments", found.arguments),
        ("job", found.job),
        ("python", found.python),
        ("packages", found.packages),
        ("data", found.data),
    )
    for title, changes in parts:
        text += _section(title, changes, found, width)
    if found.metrics:
        text += [*([""] if text else []), paint_data("metrics", "strong"), *_metrics(found.metrics, found, width)]
    return text


def _section(title: str, changes: Sequence[Change], found: Difference, width: int) -> list[str]:
    if not changes:
        return []
    columns = (Column(title.upper(), least=12), Column(found.first, least=12), Column(found.second, least=12))
    rows = [[Cell(change.name), _value(change.first), _value(change.second)] for change in changes]
    return table(columns, rows, width, paint_data)


def _value(value: str | None) -> Cell:
    return Cell("-", "faint") if value is None else Cell(value)


def _file(change: Change) -> Change:
    """Hashes tell people nothing but that they differ."""
    first, second = change.first, change.second
    return Change(change.name, first and first[:8], second and second[:8])


def _metrics(metrics: Sequence[MetricPair], found: Difference, width: int) -> list[str]:
    columns = (
        Column("METRIC", least=12),
        Column(found.first, right=True),
        Column(found.second, right=True),
        Column("BEST OF " + found.first, right=True),
        Column("BEST OF " + found.second, right=True),
    )
    rows = [
        [Cell(one.name), *map(_number, (one.first_last, one.second_last, one.first_best, one.second_best))]
        for one in metrics
    ]
    return table(columns, rows, width, paint_data)


def _number(value: float | None) -> Cell:
    return Cell("-", "faint") if value is None else Cell(words.number(value))
