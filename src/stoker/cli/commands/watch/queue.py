"""`stoker queue`: what waiting runs wait for."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from stoker.cli.command import Command, json_option
from stoker.cli.view import terminal, words
from stoker.cli.view.safetext import one_line
from stoker.cli.view.tables import Column, table
from stoker.cli.view.terminal import paint_data, say, show, show_json
from stoker.client.api.client import Client
from stoker.model.run.queue import Turn

_COLUMNS = (
    Column("RUN", least=12),
    Column("ON", least=6),
    Column("PRIORITY"),
    Column("PERSON", least=4),
    Column("AGE", right=True),
    Column("STARTS"),
    Column("WAITS FOR", least=12),
)


@click.command(
    cls=Command,
    examples=[
        ("stoker queue", "list waiting runs, the next one first"),
        ("stoker queue --json", "the same, for a program"),
    ],
)
@json_option()
def command(as_json: bool) -> None:
    """Show what waiting runs wait for, and when they will start.

    The order is by priority, then in turns between people: whoever has used least of late is next. Times are estimates
    from earlier runs of the same name, else from `time_limit`; without either, they are unknown.
    """
    turns = Client.connect().queue()
    if as_json:
        show_json({"turns": turns})
        return
    if not turns:
        say("no run is waiting")
        return
    now = datetime.now(UTC)
    for line in table(_COLUMNS, [_row(one, now) for one in turns], terminal.width(), paint_data):
        show(line)
    for one in turns:
        if one.unknown:
            say(f"{one.name}: its start is unknown: {one_line(one.unknown)}")
            break


def _row(one: Turn, now: datetime) -> list[str]:
    return [
        one.name,
        one.on,
        str(one.priority),
        one_line(one.person),
        words.age(one.submitted_at, now),
        _starts(one, now),
        one_line(one.waits_for),
    ]


def _starts(one: Turn, now: datetime) -> str:
    if one.starts_at is None:
        return "unknown"
    seconds = (one.starts_at - now).total_seconds()
    return "now" if seconds < 1 else f"in {words.duration(seconds)}"
