"""`stoker metrics`: the metrics of a run, where they were found, and what a custom pattern would find."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import click

from stoker.cli.command import Command, json_option, run_argument
from stoker.cli.commands.watch.show import so_far
from stoker.cli.view import terminal, words
from stoker.cli.view.portrait import metric_table
from stoker.cli.view.tables import Column, table
from stoker.cli.view.terminal import paint_data, say, show, show_json
from stoker.client.api.client import Client
from stoker.client.api.handle import RunHandle
from stoker.errors import BadInput
from stoker.model.job.pattern import MetricPattern, compiled

_MOST_SHOWN = 20
_REDRAWN = re.compile(r"[\r\b]+")
_ESCAPES = re.compile(r"\x1b\[[0-9;?]{0,20}[A-Za-z]")


@dataclass(frozen=True, slots=True)
class LineHit:
    attempt: int
    line: int
    value: float
    step: float | None
    text: str


@click.command(
    cls=Command,
    examples=[
        ("stoker metrics ants-7", "list every metric of the run, and where it was found"),
        (r"stoker metrics ants-7 --try 'train loss ([\d.]+)'", "try this pattern on its log"),
    ],
)
@run_argument()
@click.option("--try", "pattern", metavar="PATTERN", help="Show what this pattern finds in the run's output.")
@json_option()
def command(name: str, pattern: str | None, as_json: bool) -> None:
    """List the metrics of a run, or try a pattern on its log.

    PATTERN is a regular expression; its first group, or the one named `value`, is the number, and a group named `step`
    is the step. Add a pattern that works to the job file, below `metrics`.
    """
    run = Client.connect().run(name)
    if pattern is not None:
        _try(run, pattern, as_json)
        return
    facts = run.facts if run.state.ended else replace(run.facts, metrics=so_far(run.metrics()))
    found = [event.text for event in run.events() if event.kind == "metrics"]
    if as_json:
        show_json({"metrics": facts.metrics, "found": found})
        return
    for line in metric_table(facts, terminal.width(), paint_data) or ["no metrics so far"]:
        show(line)
    for text in dict.fromkeys(found):
        say(text)
    if not facts.metrics:
        say(f"next: stoker metrics {run.name} --try 'loss: ([0-9.]+)'")


def _try(run: RunHandle, text: str, as_json: bool) -> None:
    try:
        pattern = compiled(text)
    except ValueError as error:
        raise BadInput(f"--try: found `{text}`: {error}", hint=r"for example --try 'train loss ([\d.]+)'") from None
    hits = list(_hits(run, pattern))
    if as_json:
        show_json({"hits": hits})
        return
    columns = [*(Column(title, right=True) for title in ("ATTEMPT", "LINE", "VALUE", "STEP")), Column("TEXT", least=20)]
    rows = [
        [str(hit.attempt), f"{hit.line:,}", words.number(hit.value), _step(hit.step), hit.text.strip()]
        for hit in hits[:_MOST_SHOWN]
    ]
    for line in table(columns, rows, terminal.width(), paint_data) if rows else ["no match"]:
        show(line)
    if len(hits) > _MOST_SHOWN:
        show(f"… and {len(hits) - _MOST_SHOWN:,} more")


def _hits(run: RunHandle, pattern: MetricPattern) -> Iterator[LineHit]:
    """In the first rank's output of every attempt, parsed as the agent does."""
    for log in run.log_list():
        if log.rank:
            continue
        data = b"".join(run.logs(log.rank, log.attempt))
        for number, line in enumerate(data.decode(errors="replace").split("\n"), 1):
            states = _REDRAWN.split(line.rstrip("\r\b "))
            shown = _ESCAPES.sub("", next((one for one in reversed(states) if one.strip()), ""))
            if match := pattern.find(shown):
                yield LineHit(log.attempt, number, match.value, match.step, shown)


def _step(step: float | None) -> str:
    return "" if step is None else words.number(step)
