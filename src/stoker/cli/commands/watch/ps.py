"""`stoker ps` and `stoker queue`: lists runs, and what waiting ones wait for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime

import click

from stoker.cli.command import Command, json_option
from stoker.cli.view import terminal, words
from stoker.cli.view.terminal import one_line, paint_data, say, show, show_json
from stoker.cli.view.words import STYLES, Column, TableCell, table
from stoker.client.api.client import Client
from stoker.model.run.run import Run, RunState, Turn

ACTIVE = "active"
_ALL = 1_000_000
_STATES = [ACTIVE, *(state.value for state in RunState)]
_RUN_COLUMNS = (
    Column("RUN", least=12),
    Column("STATE"),
    Column("AGE", right=True),
    Column("TIME", right=True),
    Column("ON", least=6),
    Column("LAST METRIC", least=8),
    Column("EXIT", right=True),
)


@click.command(
    cls=Command,
    examples=[
        ("stoker ps", "list active runs, and the last 20 others"),
        ("stoker ps --experiment ants --state failed", "list failed runs of one experiment"),
        ("stoker ps -a --sizes", "list all runs with their sizes"),
        ("stoker ps -a --json", "list all runs, for a program"),
    ],
)
@click.option("-a", "--all", "everything", is_flag=True, help="Show all runs.")
@click.option("-n", "limit", type=click.IntRange(1), default=20, metavar="N", help="Show at most N runs [default: 20].")
@click.option("--experiment", default="", metavar="NAME", help="Only runs of this job.")
@click.option("--state", type=click.Choice(_STATES), metavar="STATE", help="Only runs in this state.")
@click.option("--sizes", "weighed", is_flag=True, help="Show the size of each run, in its store and on this computer.")
@json_option()
def command(everything: bool, limit: int, experiment: str, state: str | None, weighed: bool, as_json: bool) -> None:
    """List runs: active ones first.

    Active runs are queued, starting or running; all of them are shown, then the newest of the others. STATE is one of
    these, or succeeded, failed, cancelled, or active for all active runs. The waiting trials of a sweep share one line;
    -a and --state queued list each of them.
    """
    client = Client.connect()
    folded = not (everything or as_json or state == RunState.QUEUED)
    runs = _runs(client, _ALL if everything else limit, experiment, state or "", folded=folded)
    sizes = client.sizes(*(run.name for run in runs)) if weighed else None
    if as_json:
        show_json({"runs": runs, "sizes": sizes} if sizes else {"runs": runs})
        return
    waiting = _waiting(client, experiment) if folded and state in (None, ACTIVE) else []
    if not runs and not waiting:
        wanted = experiment or state
        say(
            "no run matches" if wanted else "no runs yet: write a job file with `stoker init`, run it with `stoker run`"
        )
        return
    now = datetime.now(UTC)
    if sizes:
        from stoker.cli.view.words import tell  # rarely used

        tell(runs, sizes, now)
        return
    rows = [*([row(run, now) for run in runs if not run.state.ended]), *waiting]
    rows += [row(run, now) for run in runs if run.state.ended]
    for line in table(_RUN_COLUMNS, rows, terminal.width(), paint_data):
        show(line)
    for run in runs:
        if run.state in (RunState.STARTING, RunState.RUNNING) and run.reason and run.hint:  # the user may have to act
            say(f"{run.name}: {one_line(run.reason)}; {run.hint}")


def _waiting(client: Client, experiment: str) -> list[list[TableCell | str]]:
    """One line for the trials of a sweep that wait: there may be thousands."""
    now = datetime.now(UTC)
    rows: list[list[TableCell | str]] = []
    for one in client.sweeps():
        count = one.states.get(RunState.QUEUED, 0)
        if count and experiment in ("", one.sweep.experiment):
            state = TableCell(f"{count:,} {RunState.QUEUED}", STYLES[RunState.QUEUED])
            rows.append([one.sweep.name, state, words.age(one.sweep.submitted_at, now), "", one.sweep.job.on, "", ""])
    return rows


def _runs(client: Client, limit: int, experiment: str, state: str, *, folded: bool) -> list[Run]:
    newest = client.runs(limit=limit, experiment=experiment, state=state, folded=folded)
    if state or (len(newest) < limit):
        return _active_first(newest)
    active = client.runs(limit=_ALL, experiment=experiment, state=ACTIVE, folded=folded)
    known = {run.id for run in active}
    return _active_first([*active, *(run for run in newest if run.id not in known)])[: max(limit, len(active))]


def _active_first(runs: Sequence[Run]) -> list[Run]:
    return sorted(runs, key=lambda run: run.state.ended)  # stable: newest first within both


def row(run: Run, now: datetime) -> list[TableCell | str]:
    ended = run.ended_at or now
    took = words.duration((ended - run.started_at).total_seconds()) if run.started_at else ""
    code = "" if run.exit_code is None else str(run.exit_code)
    return [
        run.name,
        TableCell(f"{run.state}, node kept" if run.kept_until else str(run.state), STYLES[run.state]),
        words.age(run.submitted_at, now),
        took,
        run.place,
        last_metric(run),
        TableCell(code, "error" if run.state is RunState.FAILED else ""),
    ]


# Progress and settings, not results.
_NOT_TELLING = re.compile(
    r"(?i)progress|total_steps|total_epochs|(.*/)?(epoch|lr([-_].*)?|learning_rate|grad_norm|gnorm|momentum|weight_decay)"
)


def last_metric(run: Run) -> str:
    """The metric that the job optimizes, else the one that was reported last."""
    target = run.job.stop_when
    telling = [one for one in run.metrics if not _NOT_TELLING.fullmatch(one)] or list(run.metrics)
    name = target.metric if target and target.metric in run.metrics else (telling[-1] if telling else "")
    if not name:
        return ""
    metric = run.metrics[name]
    step = "" if metric.step is None else f" @ {words.number(metric.step)}"
    return f"{name} {words.number(metric.last)}{step}"


_QUEUE_COLUMNS = (
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
def queue(as_json: bool) -> None:
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
    for line in table(_QUEUE_COLUMNS, [_row(one, now) for one in turns], terminal.width(), paint_data):
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
