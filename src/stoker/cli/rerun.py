"""`stoker rerun`: an earlier run once more."""

from __future__ import annotations

import click

from stoker.cli.attend import attend
from stoker.cli.command import Command, change_options, json_option, run_argument
from stoker.client import jobfile
from stoker.client.client import Client
from stoker.client.sending import without_keeping


@click.command(
    cls=Command,
    examples=[
        ("stoker rerun ants-7", "run ants-7 again and show its output"),
        ("stoker rerun -d --set env.SEED=8", "run the newest run again with another seed, in the background"),
        ("stoker rerun ants-7 --from-checkpoint --set env.EPOCHS=50", "train the model of ants-7 further"),
    ],
)
@run_argument()
@change_options()
@click.option("--from-checkpoint", is_flag=True, help="Start from the last checkpoint of RUN instead of from nothing.")
@click.option("-d", "--detach", is_flag=True, help="Submit, print the new run's name, and return at once.")
@json_option()
def command(
    name: str, sets: tuple[str, ...], on: str, called: str, from_checkpoint: bool, detach: bool, as_json: bool
) -> int:
    """Run an earlier run once more, with the same code and Python.

    The code, the job, the data and the Python are those of the earlier run, whatever has changed in your folder since;
    `--set` changes the job. Secrets are taken from your environment anew. Without RUN: the newest.
    """
    client = Client.connect()
    old = client.run(name)
    job = jobfile.changed(without_keeping(old.facts.job), [*sets, f"on={on}"] if on else sets)
    run = client.rerun(old.name, job, from_checkpoint=from_checkpoint, name=called)
    start = ", from its last checkpoint" if run.facts.start else ""
    header = f"{run.name} on {run.facts.job.on}, a rerun of {run.facts.rerun_of}{start}"
    return attend(client, run, header, detach=detach, as_json=as_json)
