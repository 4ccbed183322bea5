"""`stoker release`: the early end of a node that was kept."""

from __future__ import annotations

import click

from stoker.cli.command import Command, json_option, run_argument
from stoker.cli.terminal import say, show_json
from stoker.client.client import Client


@click.command(
    cls=Command,
    examples=[
        ("stoker release ants-7", "you have seen enough"),
        ("stoker release", "of the newest run"),
    ],
)
@run_argument()
@json_option()
def command(name: str, as_json: bool) -> int:
    """Release the node of a failed run that was kept.

    A job with `keep_failed`, or `stoker run --keep-failed 30m`, leaves the node of a run that fails in place for so
    long. It costs what it cost before; this ends that now.
    """
    run = Client.connect().run(name).release()
    if as_json:
        show_json({"run": run.facts})
    else:
        say(f"the node of {run.name} is released; see that nothing is left with: stoker cleanup")
    return 0
