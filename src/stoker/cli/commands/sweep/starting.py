"""`stoker run` and `stoker plan` for a job with a `matrix`: what its trials are, and how far they are."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from decimal import Decimal
from itertools import islice

from stoker.cli.view import words
from stoker.cli.view.terminal import INTERRUPTED, can_erase, confirmed, redraw, say, show, show_json
from stoker.client.report.spelling import usd
from stoker.client.sweeps.sweeps import SweepHandle
from stoker.errors import BadInput
from stoker.model.cause import Cause
from stoker.model.job.job import Job
from stoker.model.job.references import NUMBERS
from stoker.model.job.search import AT_ONCE, trials_of
from stoker.model.job.trials import trial_jobs
from stoker.model.run.receipt import Forecast
from stoker.model.run.run import RunState
from stoker.model.run.sweep import SweepState

BUDGET_SPENT = 75  # the exit code, as of a run that is paused
MANY = 1000  # trials that are not submitted without asking
_DRAW = re.compile(r"(uniform|log_uniform|integer)\((.*)\)")
_NEEDS_NO_QUOTES = re.compile(r"[\w.+-]+")


def settings(matrix: Sequence[str]) -> list[str]:
    """`--matrix lr=1e-3,1e-2` as a setting of the job: `matrix.lr=[1e-3, 1e-2]`. `nodes=1,2` is also the number of
    nodes of each trial."""
    given = dict(map(_setting, matrix))
    own = [f"{name}=${{matrix.{name}}}" for name in NUMBERS if name in given]
    return [*own, *(f"matrix.{name}={value}" for name, value in given.items())]


def _setting(text: str) -> tuple[str, str]:
    name, equals, values = text.partition("=")
    name = name.strip()
    if not equals or not re.fullmatch(r"[A-Za-z_]\w*", name) or not values.strip():
        hint = "for example `--matrix lr=1e-3,1e-2`, `seed=1..5` or `lr=log_uniform(1e-5,1e-1)`"
        raise BadInput(f"--matrix {text}: expected NAME=VALUES", hint=hint)
    if drawn := _DRAW.fullmatch(values.strip()):
        return name, f"{{{drawn[1]}: [{drawn[2]}]}}"
    if values.strip()[0] in "[{" or "," not in values:
        return name, values
    parts = [part.strip() for part in values.split(",")]
    return name, "[" + ", ".join(part if _NEEDS_NO_QUOTES.fullmatch(part) else json.dumps(part) for part in parts) + "]"


def agree(job: Job, *, yes: bool, as_json: bool) -> None:
    """Asks before a very large sweep. Raises BadInput if the answer is no."""
    count = trials_of(job.matrix, job.search) if job.matrix else 0
    if count <= MANY:
        return
    if not confirmed(f"submit {count:,} trials?", yes=yes, as_json=as_json):
        hint = f"stoker plan lists them; `--yes` submits more than {MANY:,} without asking"
        raise BadInput(f"not submitted: {count:,} trials", hint=hint, cause=Cause.UNCONFIRMED)


def attend(sweep: SweepHandle, *, detach: bool, as_json: bool) -> int:
    """Shows how far it is, until all trials have ended. The exit code: 0 if all have succeeded."""
    state = sweep.state
    if as_json:
        show_json({"sweep": state})
    else:
        which = f"the first are {state.first} to {state.last}" if state.sweep.due else f"{state.first} to {state.last}"
        say(f"{sweep.name}: {words.count(state.sweep.trials + state.sweep.due, 'trial')}, {which}, on {sweep.job.on}")
    if detach:
        if not as_json:
            show(sweep.name)
            say(f"next: stoker sweep show {sweep.name}")
        return 0
    try:
        _follow(sweep, quiet=as_json)
    except KeyboardInterrupt:
        say(f"detached: {sweep.name} continues")
        say(f"  stoker sweep show {sweep.name}      how far it is")
        say(f"  stoker sweep cancel {sweep.name}    cancel what has not ended")
        return INTERRUPTED
    if as_json:
        show_json({"sweep": sweep.state})
    else:
        say(f"next: stoker results {sweep.name}")
    if sweep.state.states.get(RunState.PAUSED):
        return BUDGET_SPENT
    done = sweep.state.states.get(RunState.SUCCEEDED, 0)
    if sweep.state.rungs and not sweep.state.sweep.cancelled:  # which stops most of them for good
        return 0 if done and not sweep.state.states.get(RunState.FAILED) else 1
    return 0 if done == sweep.state.sweep.trials and not sweep.state.sweep.stopped else 1


def _follow(sweep: SweepHandle, *, quiet: bool) -> None:
    shown = ""
    for state in sweep.changes():
        line = progress(state)
        if quiet or line == shown:
            continue
        shown = line
        if can_erase():
            redraw(line, err=True)
        elif not sweep.working:
            say(line)
    if not quiet and can_erase():
        say()


def progress(state: SweepState) -> str:
    """`120 of 200 trials succeeded, 2 running, 78 queued, $1.20`"""
    done = state.states.get(RunState.SUCCEEDED, 0)
    others = [one for one in RunState if one is not RunState.SUCCEEDED and state.states.get(one)]
    parts = [
        f"{done} of {state.sweep.trials + state.sweep.due} trials succeeded",
        *(f"{state.states[one]} {one}" for one in others),
        *([usd(state.usd)] if state.usd else []),
    ]
    return ", ".join(parts) + (f"; no more: {state.sweep.stopped}" if state.sweep.stopped else "")


def rung_lines(state: SweepState) -> list[str]:
    """`epoch 3: 21 reached it, 7 resumed; best val_acc 0.91, ants-4`"""
    search = state.sweep.job.search
    lines = []
    for one in state.rungs if search else ():
        parts = [f"{one.reached} reached it"]
        parts += [f"{one.resumed} resumed"] if one.resumed else []
        parts += [f"{one.failed} failed before"] if one.failed else []
        best = f"; best {search.name} {one.score:.4g}, {one.best}" if search and one.score is not None else ""
        lines.append(f"{search.unit if search else ''} {one.at}: {', '.join(parts)}{best}")
    return lines


def plan_rows(job: Job, forecast: Forecast | None) -> list[tuple[str, str]]:
    """What is special about a sweep, for `stoker plan`."""
    assert job.matrix
    search, trials = job.search, list(islice(trial_jobs(job), 3))
    count = trials_of(job.matrix, search) if not job.matrix.exclude else sum(1 for _ in job.matrix.trials())
    if search and search.draws:
        rows = [("trials", f"{count:,}\ndrawn by Optuna ({search.sampler}) from the {search.metric} of earlier ones")]
    else:
        lines = [f"{', '.join(f'{name}={text}' for name, text in values.items())}" for values, _ in trials]
        shown = "\n".join([*lines, f"… {count - len(lines):,} more"] if count > len(lines) else lines)
        rows = [("trials", f"{count:,}\n{shown}"), ("first", trials[0][1].run)]
    if at_once := job.max_parallel or (AT_ONCE if search and search.draws else None):
        rows.append(("at once", f"at most {at_once}"))
    if search and search.rungs:
        left = [count, *(search.kept(count, number) for number in range(len(search.rungs) - 1))]
        reach = ", ".join(f"{trials:,} to {at}" for trials, at in zip(left, search.rungs, strict=True))
        rows.append(("search", f"{search.by} by {search.metric}: {reach} ({search.unit}s)"))
    each = forecast.choice.usd if forecast and forecast.choice else None
    if each is not None:
        limit = f"; the budget stops them at {usd(job.budget)}" if job.budget is not None else ""
        rows.append(("all", f"about {usd(Decimal(count) * each)}: {count:,} times {usd(each)}{limit}"))
    return rows
