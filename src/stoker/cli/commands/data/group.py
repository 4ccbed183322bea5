"""`stoker data`: datasets, from a folder of yours to a store and back."""

from __future__ import annotations

import click

from stoker.cli.command import Group
from stoker.cli.commands.data.get import get, verify
from stoker.cli.commands.data.put import add, put
from stoker.cli.commands.data.show import diff, ls, rm, show


@click.group(
    cls=Group,
    examples=[
        ("stoker data put ./hymenoptera_data --name hymenoptera", "bring a folder to the store, as a version"),
        ("stoker data add coco 'coco2017/**' --store blob", "register what is in a store already"),
        ("stoker data get hymenoptera@3", "bring version 3 to ./hymenoptera"),
    ],
)
def command() -> None:
    """Bring data to a store, and keep versions of it.

    A dataset is a named list of files in a store. Every version is known by the hash of what is in it, and has a
    number: `hymenoptera` is the newest, `hymenoptera@3` stays what it is. Jobs name them under `data`.
    """


for part in (put, add, ls, show, get, verify, diff, rm):
    command.add_command(part)
