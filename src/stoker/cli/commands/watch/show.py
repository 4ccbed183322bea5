"""`stoker show`, `explain` and `metrics`: everything about a run."""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import click

from stoker.cli.command import NEWEST, Command, json_option, run_argument
from stoker.cli.view import terminal, words
from stoker.cli.view.portrait import metric_table, plot, portrait
from stoker.cli.view.terminal import one_line, paint_data, say, show, show_json
from stoker.cli.view.words import Column, table
from stoker.client.api.client import Client
from stoker.client.api.handle import RunHandle
from stoker.client.api.reading import Metrics
from stoker.errors import BadInput, Malformed, NotFound, StoreDenied, StoreUnavailable
from stoker.model.cause import Cause
from stoker.model.job.fields import nearest
from stoker.model.job.sections import MetricPattern, compiled
from stoker.model.run.report import MetricSummary, summed
from stoker.model.run.run import Run, RunState
from stoker.model.snapshot import Entry
from stoker.model.wire import from_plain

_MOST_CHARTS = 4
_MOST_LATER = 200
_PLOT_WIDTH = 100


@click.command(
    cls=Command,
    examples=[
        ("stoker show", "everything about the newest run"),
        ("stoker show ants-7 --plot", "with curves of its metrics"),
        ("stoker show ants-7 --plot val_acc", "with the curve of one of them"),
    ],
)
@run_argument()
@click.option("--plot", "metric", is_flag=False, flag_value="", default=None, metavar="[METRIC]", help="Draw curves.")
@json_option()
def command(name: str, metric: str | None, as_json: bool) -> None:
    """Show everything about a run.

    Its state and the reason for it, its settings, attempts, events, metrics and outputs. Without RUN: the newest.
    """
    client = Client.connect()
    run, metric = _meant(client, name, metric)
    events, outputs, metrics = run.events(), [], None
    # The rest is worth showing without it, and the events say so.
    with suppress(StoreDenied, StoreUnavailable):
        with suppress(Malformed):
            outputs = output_entries(client, run)
        metrics = run.metrics() if metric is not None or not run.state.ended else None
    facts = run.facts if run.facts.metrics or not metrics else replace(run.facts, metrics=so_far(metrics))
    later = resumed_by(client, facts)
    if as_json:
        points = {"points": list(metrics)} if metrics is not None and metric is not None else {}
        show_json({"run": facts, "events": events, "outputs": outputs, "resumed_by": later, **points})
        return
    for line in portrait(facts, events, outputs, Path.cwd(), datetime.now(UTC), terminal.width(), paint_data):
        show(line)
    if later:
        show("")
        show(f"resumed by {', '.join(later)}")
    if metrics is not None and metric is not None:
        for line in charts(metrics, metric, min(terminal.width(), _PLOT_WIDTH)):
            show(line)
    if run.facts.hint:
        say(f"hint: {run.facts.hint}")


def _meant(client: Client, name: str, metric: str | None) -> tuple[RunHandle, str | None]:
    """`stoker show --plot ants-7` names a run, not a metric, unless the newest run has a metric of that name."""
    run = client.run(name)
    if name == NEWEST and metric and metric not in run.facts.metrics and metric not in run.metrics().names:
        try:
            return client.run(metric), ""
        except NotFound:
            pass
    return run, metric


def resumed_by(client: Client, facts: Run) -> list[str]:
    """The names of runs that resume this one."""
    if not facts.state.ended or facts.state is RunState.SUCCEEDED:
        return []
    runs = client.runs(limit=_MOST_LATER, experiment=facts.experiment)
    return [one.name for one in runs if one.resumes and one.start and one.start.run_id == facts.id]


def output_entries(client: Client, run: RunHandle) -> list[Entry]:
    """The files that the run has saved so far."""
    told = client.connection.get(f"/v1/runs/{run.name}/outputs")
    return [from_plain(Entry, entry) for entry in told["entries"]]


def so_far(metrics: Metrics) -> dict[str, MetricSummary]:
    """The summary that an active run would have if it ended now."""
    return summed((point.values, point.step) for point in metrics)


def charts(metrics: Metrics, name: str, width: int) -> list[str]:
    if name and name not in metrics.names:
        near = nearest(name, metrics.names)
        known = ", ".join(metrics.names) or "it has reported none"
        raise NotFound(
            f"the run has no metric `{name}`",
            hint=f"did you mean `{near}`?" if near else f"known metrics: {known}",
            cause=Cause.NO_SUCH_METRIC,
        )
    names = [name] if name else metrics.names[:_MOST_CHARTS]
    if not names:
        return ["", "no metrics to plot yet"]
    height = max(6, min(16, (shutil.get_terminal_size().lines - 4) // len(names) - 4))
    lines: list[str] = []
    for one in names:
        lines += ["", paint_data(one, "strong"), *plot(_series(metrics, one), width, height)]
    left = metrics.names[_MOST_CHARTS:] if not name else []
    return lines + ([f"also: {', '.join(left)} (plot one with --plot NAME)"] if left else [])


def _series(metrics: Metrics, name: str) -> Sequence[tuple[float | None, float]]:
    """Of the first rank that reports it: the curves of the others would only blur it."""
    having = [point for point in metrics if name in point.values]
    rank = min(point.rank for point in having)
    # JSON has no NaN: it arrives as null.
    values: list[tuple[float | None, float | None]] = [
        (one.step, one.values[name]) for one in having if one.rank == rank
    ]
    return [(step, math.nan if value is None else value) for step, value in values]


@click.command(
    cls=Command,
    examples=[
        ("stoker explain", "explain the newest run"),
        ("stoker explain ants-7", "explain another run"),
    ],
)
@run_argument()
@json_option()
def explain(name: str, as_json: bool) -> None:
    """Explain what happened to a run, and why.

    When and where it started, its evictions with their notice, what was saved by then, which work was repeated and what
    that cost; its current state, the reason, and what you can do about it. Without RUN: the newest.
    """
    now = datetime.now(UTC)
    run = Client.connect().run(name)
    sentences = run.explain(lambda at: words.clock(at, now))
    if as_json:
        show_json({"state": run.state, "cause": run.cause, "sentences": sentences})
        return
    for sentence in sentences:
        show(one_line(sentence))


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
def metrics(name: str, pattern: str | None, as_json: bool) -> None:
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
        raise BadInput(
            f"--try: found `{text}`: {error}",
            hint=r"for example --try 'train loss ([\d.]+)'",
            cause=Cause.VALUE_INVALID,
        ) from None
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
