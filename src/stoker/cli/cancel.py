"""`stoker cancel`: the early end of runs."""

from __future__ import annotations

import click

from stoker.cli import terminal
from stoker.cli.command import Command, json_option, run_arguments
from stoker.cli.states import ENDED
from stoker.cli.terminal import say, show_json
from stoker.client.client import Client
from stoker.errors import Conflict

_PATIENCE_S = 60.0  # agents give a script 10 s, and are ended from outside after 45


@click.command(
    cls=Command,
    examples=[
        ("stoker cancel ants-7", "end one run"),
        ("stoker cancel ants-7 ants-8 --yes", "end two without being asked"),
    ],
)
@run_arguments()
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@json_option()
def command(names: tuple[str, ...], yes: bool, as_json: bool) -> int:
    """End runs early.

    The script gets SIGTERM and ten seconds; what it has written to its outputs is kept. Nothing is cancelled if one of
    the runs does not exist or has ended.
    """
    client = Client.connect()
    runs = [client.run(name) for name in dict.fromkeys(names)]
    ended = [run for run in runs if run.state.ended]
    if ended:
        raise Conflict(f"`{ended[0].name}` {ENDED[ended[0].state]} already", hint=f"stoker show {ended[0].name}")
    question = f"cancel {', '.join(run.name for run in runs)}?"
    if not yes and not as_json and terminal.interactive() and not terminal.ask(question):
        return 1
    for run in runs:
        run.cancel()
    for run in runs:
        run.wait(_PATIENCE_S)
        if not as_json:
            say(f"{run.name} {ENDED.get(run.state, f'is still {run.state}, and will end soon')}")
    if as_json:
        show_json({"runs": [run.facts for run in runs]})
    return 0
