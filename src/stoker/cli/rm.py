"""`stoker rm`: runs that are no longer wanted."""

from __future__ import annotations

import click

from stoker.cli import terminal, words
from stoker.cli.command import Command, json_option, run_arguments
from stoker.cli.terminal import say, show_json
from stoker.client.client import Client
from stoker.errors import Conflict


@click.command(
    cls=Command,
    examples=[
        ("stoker rm ants-7", "remove one run"),
        ("stoker rm ants-7 ants-8 --yes", "remove two without being asked"),
    ],
)
@run_arguments()
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@json_option()
def command(names: tuple[str, ...], yes: bool, as_json: bool) -> int:
    """Remove ended runs and what is stored of them.

    Logs, metrics and stored outputs go; outputs that were brought to a folder of yours stay there. Nothing is removed
    if one of the runs does not exist or is still going.
    """
    client = Client.connect()
    runs = [client.run(name) for name in dict.fromkeys(names)]
    going = [run for run in runs if not run.state.ended]
    if going:
        raise Conflict(f"`{going[0].name}` is {going[0].state}", hint=f"end it first: `stoker cancel {going[0].name}`")
    question = f"remove {words.count(len(runs), 'run')} ({', '.join(run.name for run in runs)}) for good?"
    if not yes and not as_json and terminal.interactive() and not terminal.ask(question):
        return 1
    for run in runs:
        client.remove(run.name)
        if not as_json:
            say(f"removed {run.name}")
    if as_json:
        show_json({"removed": [run.name for run in runs]})
    return 0
