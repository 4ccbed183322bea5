"""`stoker rerun`: an earlier run once more."""

from __future__ import annotations

import click

from stoker.cli.attend import attend
from stoker.cli.command import Command, json_option, run_argument
from stoker.client.client import Client


@click.command(
    cls=Command,
    examples=[
        ("stoker rerun ants-7", "run ants-7 again and show its output"),
        ("stoker rerun -d", "run the newest run again, in the background"),
    ],
)
@run_argument()
@click.option("-d", "--detach", is_flag=True, help="Submit, print the new run's name, and return at once.")
@json_option()
def command(name: str, detach: bool, as_json: bool) -> int:
    """Run an earlier run once more, with the same code and Python.

    The code, the job, the data and the Python are those of the earlier run, whatever has changed in your folder since.
    Secrets are taken from your environment anew. Without RUN: the newest.
    """
    client = Client.connect()
    run = client.rerun(client.run(name).name)
    header = f"{run.name} on {run.facts.job.on}, once more {run.facts.rerun_of}"
    return attend(client, run, header, detach=detach, as_json=as_json)
