"""`stoker sweep`: sweeps, and what can be done with all trials of one."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from stoker.cli.command import NEWEST, Command, Decorator, Group, json_option
from stoker.cli.commands.sweep import starting
from stoker.cli.view import terminal, words
from stoker.cli.view.terminal import paint_data, say, show, show_json
from stoker.cli.view.words import Column, TableCell, pairs, table
from stoker.client.api.client import Client
from stoker.client.report.spelling import usd as dollars
from stoker.client.submit import jobfile
from stoker.errors import BadInput
from stoker.model.cause import Cause
from stoker.model.run.run import RunState
from stoker.model.run.sweep import SweepState

_COLUMNS = (
    Column("SWEEP", least=8),
    Column("TRIALS", right=True),
    Column("DONE", right=True),
    Column("RUNNING", right=True),
    Column("WAITING", right=True),
    Column("FAILED", right=True),
    Column("COST", right=True),
    Column("AGE", right=True),
)


@click.group(
    cls=Group,
    examples=[
        ("stoker run --matrix lr=1e-3,1e-2 --matrix seed=1..5", "start one"),
        ("stoker sweep show", "how far the newest one is"),
        ("stoker sweep retry ants-s1", "run its failed trials again"),
    ],
)
def command() -> None:
    """Manage sweeps: many runs of one job with different values.

    A job with a `matrix` is a sweep, and its runs are trials. SWEEP is a sweep's name, or that of an experiment for its
    newest one; without it, the newest of all.
    """


def _sweep() -> Decorator:
    return click.argument("name", metavar="[SWEEP]", required=False, default=NEWEST)


@command.command("ls", cls=Command, examples=[("stoker sweep ls", "list all, the newest first")])
@json_option()
def ls(as_json: bool) -> None:
    """List sweeps, the newest first."""
    sweeps = Client.connect().sweeps()
    if as_json:
        show_json({"sweeps": sweeps})
        return
    if not sweeps:
        say("no sweeps yet: start one with `stoker run --matrix NAME=VALUES`")
        return
    now = datetime.now(UTC)
    for line in table(_COLUMNS, [_row(one, now) for one in sweeps], terminal.width(), paint_data):
        show(line)


def _row(one: SweepState, now: datetime) -> list[TableCell | str]:
    running = one.states.get(RunState.RUNNING, 0) + one.states.get(RunState.STARTING, 0)
    failed = one.states.get(RunState.FAILED, 0)
    return [
        one.sweep.name,
        f"{one.sweep.trials + one.sweep.due:,}",
        f"{one.states.get(RunState.SUCCEEDED, 0):,}",
        f"{running:,}",
        f"{one.open - running + one.sweep.due:,}",
        TableCell(f"{failed:,}", "error" if failed else ""),
        dollars(one.usd) if one.usd else "",
        words.age(one.sweep.submitted_at, now),
    ]


@command.command(
    "show",
    cls=Command,
    examples=[("stoker sweep show", "the newest one"), ("stoker sweep show ants-s1 --json", "for a program")],
)
@_sweep()
@json_option()
def show_command(name: str, as_json: bool) -> None:
    """Show how far a sweep is, and what it has cost."""
    state = Client.connect().find_sweep(name).state
    if as_json:
        show_json({"sweep": state})
        return
    sweep, job = state.sweep, state.sweep.job
    show(f"{sweep.name}: {starting.progress(state)}")
    matrix = job.matrix.plain() if job.matrix else {}
    values = [f"{key}: {_shown(value)}" for key, value in matrix.items()]
    repeated = f"{state.runs - sweep.trials} of them retries" if state.runs > sweep.trials else ""
    rows = [
        ("runs", ", ".join(filter(None, [f"{state.first} to {state.last}", repeated]))),
        ("command", job.run),
        ("matrix", "\n".join(values)),
        ("rungs", "\n".join(starting.rung_lines(state))),
        ("next", f"cannot be drawn, and is tried again: {state.trouble}" if state.trouble else ""),
        ("on", job.on),
        ("at once", f"at most {sweep.max_parallel}" if sweep.max_parallel else ""),
        ("budget", f"{dollars(state.usd)} of {dollars(sweep.budget)}" if sweep.budget is not None else ""),
    ]
    for line in pairs(rows, paint_data):
        show(line)
    say(f"next: {_next(state)}")


def _shown(value: object) -> str:
    if isinstance(value, list):
        texts = [str(one) for one in value]
        return ", ".join(texts if len(texts) <= 8 else [*texts[:6], f"… {len(texts)} in all"])
    if isinstance(value, dict):  # drawn, as `--matrix` spells it
        return ", ".join(f"{kind}({_shown(bounds)})" for kind, bounds in value.items())
    return str(value)


def _next(state: SweepState) -> str:
    name = state.sweep.name
    if state.open or state.sweep.due:
        return f"stoker ps --experiment {state.sweep.experiment}; stoker sweep cancel {name}"
    return f"stoker sweep retry {name}" if state.states.get(RunState.FAILED) else f"stoker results {name}"


@command.command(cls=Command, examples=[("stoker sweep retry ants-s1", "run its failed trials again")])
@_sweep()
@json_option()
def retry(name: str, as_json: bool) -> None:
    """Run the failed trials of a sweep again, with the same code and values."""
    sweep = Client.connect().find_sweep(name)
    runs = sweep.retry()
    if as_json:
        show_json({"sweep": sweep.state, "runs": runs})
        return
    say(
        f"{words.count(len(runs), 'trial')} of {sweep.name} run again: {runs[0]}{f' to {runs[-1]}' if runs[1:] else ''}"
    )


@command.command(cls=Command, examples=[("stoker sweep cancel ants-s1", "cancel what has not ended")])
@_sweep()
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@json_option()
def cancel(name: str, yes: bool, as_json: bool) -> int:
    """Cancel all trials of a sweep that have not ended."""
    sweep = Client.connect().find_sweep(name)
    count = sweep.state.open + sweep.state.sweep.due
    if count and not terminal.confirmed(
        f"cancel {words.count(count, 'trial')} of {sweep.name}?", yes=yes, as_json=as_json
    ):
        return 1
    cancelled = sweep.cancel() if count else 0
    if as_json:
        show_json({"sweep": sweep.state, "cancelled": cancelled})
    else:
        say(f"cancelling {words.count(cancelled, 'trial')} of {sweep.name}" if cancelled else f"{sweep.name} has ended")
    return 0


@command.command(
    cls=Command,
    examples=[
        ("stoker sweep budget ants-s1 40", "all trials together may cost $40"),
        ("stoker sweep budget ants-s1 none", "remove it"),
    ],
)
@click.argument("name", metavar="SWEEP")
@click.argument("usd", metavar="USD")
@json_option()
def budget(name: str, usd: str, as_json: bool) -> None:
    """Set what all trials of a sweep may cost together.

    Trials that are paused because it was spent start again if the new one is enough.
    """
    sweep = Client.connect().find_sweep(name).set_budget(None if usd == "none" else usd)
    if as_json:
        show_json({"sweep": sweep.state})
        return
    given = sweep.state.sweep.budget
    spent = f"{dollars(sweep.state.usd)} of {dollars(given)} is spent" if given is not None else "no budget"
    say(f"{sweep.name}: {spent}")


@command.command(
    cls=Command,
    examples=[
        ("stoker sweep extend ants-s1 --matrix seed=6..10", "five more seeds for each combination of the others"),
        ("stoker sweep extend ants-s1 --matrix draws=40", "draw more: the first ones stay the same"),
    ],
)
@_sweep()
@click.option(
    "--matrix", multiple=True, required=True, metavar="NAME=VALUES", help="The values to have as well; repeatable."
)
@click.option("-y", "--yes", is_flag=True, help="Submit thousands of trials without asking.")
@json_option()
def extend(name: str, matrix: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Add trials with more values to a sweep.

    Parameters that you do not name keep their values; combinations that the sweep has already are not run again. The
    code and the data are those of the sweep, whatever has changed in your folder since.
    """
    sweep = Client.connect().find_sweep(name)
    job = jobfile.changed(sweep.job, starting.settings(matrix))
    starting.agree(job, yes=yes, as_json=as_json)
    if job.matrix is None:
        raise BadInput("nothing to add", hint="stoker sweep extend --matrix seed=6..10", cause=Cause.NOTHING_TO_CHANGE)
    before = sweep.state.sweep.trials + sweep.state.sweep.due
    state = sweep.extend(job.matrix.plain()).state
    if as_json:
        show_json({"sweep": state})
        return
    after = state.sweep.trials + state.sweep.due
    say(f"{words.count(after - before, 'trial')} added to {sweep.name}, which has {after:,} now")
