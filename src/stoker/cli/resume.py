"""`stoker resume`: a run that did not succeed, from its last checkpoint."""

from __future__ import annotations

import click

from stoker.cli.attend import attend
from stoker.cli.command import Command, change_options, json_option, run_argument
from stoker.client import jobfile
from stoker.client.client import Client
from stoker.errors import Conflict
from stoker.model.run import RunState


@click.command(
    cls=Command,
    examples=[
        ("stoker resume ants-7", "continue ants-7 from its last checkpoint"),
        ("stoker resume ants-7 --set retries=3 --on azure", "the same elsewhere, with other settings"),
        ("stoker resume ants-7 --set budget=10", "continue a run whose budget is spent"),
    ],
)
@run_argument()
@change_options()
@click.option("-d", "--detach", is_flag=True, help="Submit, print the run's name, and return at once.")
@json_option()
def command(name: str, sets: tuple[str, ...], on: str, called: str, detach: bool, as_json: bool) -> int:
    """Continue a failed or cancelled run from its last checkpoint.

    A run that has ended keeps its end: what continues is a new run, `ants-7-r2` for `ants-7`, with the same code, data
    and Python, the checkpoint and outputs that the old one had, and what is left of its budget. `--set` changes the
    job. A run that is paused because its budget is spent continues itself: give it more with `--set budget=USD`.
    Without RUN: the newest.
    """
    client = Client.connect()
    old = client.run(name)
    changes = [*sets, f"on={on}"] if on else [*sets]
    if old.state is RunState.PAUSED:
        _check_paused(old.name, changes, called)
    job = jobfile.changed(client.job_to_resume(old), changes)
    run = client.resume(old.name, job, name=called)
    step = run.facts.start.step if run.facts.start else None
    at = f" at step {step:g}" if step is not None else ""
    header = f"{run.name} on {run.facts.job.on}, resumes {old.name} from its last checkpoint{at}"
    return attend(client, run, header, detach=detach, as_json=as_json)


def _check_paused(name: str, changes: list[str], called: str) -> None:
    other = [one for one in changes if one.partition("=")[0].strip() != "budget"]
    if other or called or not changes:
        what = f"`{other[0]}` cannot be changed" if other else "it needs a larger budget"
        raise Conflict(
            f"`{name}` is paused, because its budget is spent: {what}",
            hint=f"raise its budget: `stoker resume {name} --set budget=USD`; to change the rest, cancel it first",
        )
