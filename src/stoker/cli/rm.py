"""`stoker rm`: runs that are no longer wanted."""

from __future__ import annotations

from collections.abc import Mapping

import click

from stoker.cli import terminal, words
from stoker.cli.command import NEWEST, Command, json_option, run_arguments
from stoker.cli.terminal import say, show_json
from stoker.client.client import Client
from stoker.client.handle import Run
from stoker.errors import BadInput, Conflict


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

    Logs, metrics, checkpoints and stored outputs go, and code and environments that no other run uses; outputs that
    were brought to a folder of yours stay there. Nothing is removed if one of the runs does not exist, is still going,
    has a node that is kept, is about to be resumed by another run, or is in a store that cannot be reached. The name of
    an experiment is refused. Without a terminal to ask on, `--yes` is needed.
    """
    client = Client.connect()
    meant = {name: client.run(name) for name in names}
    for name, run in meant.items():
        _check(name, run)
    runs = list({run.name: run for run in meant.values()}.values())
    question = f"remove {words.count(len(runs), 'run')} ({', '.join(run.name for run in runs)}) for good?"
    if not terminal.confirmed(question, yes=yes, as_json=as_json):
        return 1
    pending = client.remove(*(run.name for run in runs))
    if as_json:
        show_json({"removed": [run.name for run in runs], "pending": pending})
        return 0
    for run in runs:
        say(f"removed {run.name}")
    tell_pending(pending)
    return 0


def tell_pending(pending: Mapping[str, str]) -> None:
    """What is gone, and of which something is still stored."""
    for name, why in pending.items():
        say(f"{name}: some of its files are still in the store ({why}); the server keeps removing them")


def _check(name: str, run: Run) -> None:
    """What would keep it from being removed, before anybody is asked; the server knows the rest."""
    if name not in (run.name, NEWEST):
        raise BadInput(f"`{name}` is an experiment, not a run", hint=f"name its runs: `stoker rm {run.name}`")
    if not run.state.ended:
        raise Conflict(f"`{run.name}` is {run.state}", hint=f"end it first: `stoker cancel {run.name}`")
    if run.facts.kept_until:
        raise Conflict(f"the node of `{run.name}` is kept", hint=f"give it back first: `stoker release {run.name}`")
