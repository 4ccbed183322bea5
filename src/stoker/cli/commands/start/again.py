"""`stoker resume` and `stoker rerun`: resumes a run from its last checkpoint, or runs it again."""

from __future__ import annotations

import click

from stoker.cli.command import Command, change_options, json_option, run_argument
from stoker.cli.commands.start.attend import attend
from stoker.client.api.client import Client
from stoker.client.submit import jobfile
from stoker.client.submit.sending import job_again
from stoker.errors import Conflict
from stoker.model.run.run import RunState


@click.command(
    cls=Command,
    examples=[
        ("stoker resume ants-7", "resume ants-7 from its last checkpoint"),
        ("stoker resume ants-7 --set retries=3 --on azure", "resume it in another place, with other settings"),
        ("stoker resume ants-7 --set budget=10", "resume a run whose budget is spent"),
    ],
)
@run_argument()
@change_options()
@click.option("-d", "--detach", is_flag=True, help="Submit the run, print its name, and return.")
@json_option()
def resume(name: str, sets: tuple[str, ...], on: str, called: str, detach: bool, as_json: bool) -> int:
    """Resume a failed or cancelled run from its last checkpoint.

    A run that has ended does not change: a new run continues it, `ants-7-r2` for `ants-7`, with the same code, data and
    Python, the checkpoint and outputs of the old run, and the rest of its budget. `--set` overrides fields of the job.
    A run that is paused because its budget is spent resumes itself: raise its budget with `--set budget=USD`. Without
    RUN: the newest.
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
    header = f"{run.name} on {run.facts.place}, resumes {old.name} from its last checkpoint{at}"
    return attend(client, run, header, detach=detach, as_json=as_json)


def _check_paused(name: str, changes: list[str], called: str) -> None:
    other = [one for one in changes if one.partition("=")[0].strip() != "budget"]
    if other or called or not changes:
        what = f"`{other[0]}` cannot be changed" if other else "it requires a larger budget"
        raise Conflict(
            f"`{name}` is paused because its budget is spent: {what}",
            hint=f"raise its budget: `stoker resume {name} --set budget=USD`; to change the rest, cancel it first",
        )


@click.command(
    cls=Command,
    examples=[
        ("stoker rerun ants-7", "run ants-7 again and show its output"),
        ("stoker rerun -d --set env.SEED=8", "run the newest run again with another seed, in the background"),
        ("stoker rerun ants-7 --from-checkpoint --set env.EPOCHS=50", "continue training the model of ants-7"),
    ],
)
@run_argument()
@change_options()
@click.option("--from-checkpoint", is_flag=True, help="Start from the last checkpoint of RUN instead of from scratch.")
@click.option("-d", "--detach", is_flag=True, help="Submit the run, print its name, and return.")
@json_option()
def rerun(
    name: str, sets: tuple[str, ...], on: str, called: str, from_checkpoint: bool, detach: bool, as_json: bool
) -> int:
    """Run an earlier run again, with the same code and Python.

    Uses the code, job, data and Python of the earlier run, whatever has changed in your folder since; `--set` overrides
    fields of the job. Secrets are read from your environment again. Without RUN: the newest.
    """
    client = Client.connect()
    old = client.run(name)
    job = jobfile.changed(job_again(old.facts), [*sets, f"on={on}"] if on else sets)
    run = client.rerun(old.name, job, from_checkpoint=from_checkpoint, name=called)
    start = ", from its last checkpoint" if run.facts.start else ""
    header = f"{run.name} on {run.facts.place}, a rerun of {run.facts.rerun_of}{start}"
    return attend(client, run, header, detach=detach, as_json=as_json)
