"""`stoker data`: upload, download, list and delete datasets."""

from __future__ import annotations

import click

from stoker.cli.command import Group
from stoker.cli.commands.data.get import get, verify
from stoker.cli.commands.data.put import add, put
from stoker.cli.commands.data.show import diff, ls, rm, show


@click.group(
    cls=Group,
    examples=[
        ("stoker data put ./hymenoptera_data --name hymenoptera", "upload a folder to the store, as a new version"),
        ("stoker data add coco 'coco2017/**' --store blob", "register files that are already in a store"),
        ("stoker data get hymenoptera@3", "download version 3 to ./hymenoptera"),
    ],
)
def command() -> None:
    """Upload data to a store and version it.

    A dataset is a named list of files in a store. A version is identified by the hash of its content and has a number:
    `hymenoptera` is the newest, `hymenoptera@3` never changes. Jobs name datasets under `data`.
    """


for part in (put, add, ls, show, get, verify, diff, rm):
    command.add_command(part)
