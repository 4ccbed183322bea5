"""`stoker data put` and `stoker data add`: how data becomes a dataset."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from stoker.cli.command import Command, json_option
from stoker.cli.view import words
from stoker.cli.view.terminal import paint, say, show, show_json
from stoker.cli.view.transfer import watched
from stoker.client.api.client import Client
from stoker.client.data.putting import Put


def about_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--tag", "tags", multiple=True, metavar="WORD", help="A word to find it by; may be repeated."),
        click.option("--licence", default="", metavar="TEXT", help="What may be done with it, such as CC-BY-4.0."),
        click.option("--description", default="", metavar="TEXT", help="What it is, in a sentence."),
    ):
        function = option(function)
    return function


@click.command(
    cls=Command,
    examples=[
        ("stoker data put ./hymenoptera_data --name hymenoptera", "a folder, to the workspace's store"),
        ("stoker data put ratings.csv --name ratings --store blob", "one file, to another store"),
    ],
)
@click.argument("source", metavar="FOLDER|FILE", type=click.Path(path_type=Path))
@click.option("--name", required=True, help="What the dataset is called.")
@click.option("--store", default="", metavar="STORE", help="Where it goes.  [default: the workspace's store]")
@about_options
@click.option("--follow-links", is_flag=True, help="Take what links out of the folder point to.")
@click.option("--repair", is_flag=True, help="Read what is in the store, and send again what is damaged or missing.")
@json_option()
def put(
    source: Path,
    name: str,
    store: str,
    description: str,
    licence: str,
    tags: tuple[str, ...],
    follow_links: bool,
    repair: bool,
    as_json: bool,
) -> None:
    """Bring a folder or a file to a store, as a version of a dataset.

    Only content that the store lacks is sent, and everything is verified. A folder that has not changed makes no new
    version. What was interrupted goes on where it stopped: call it again.
    """
    datasets = Client.connect().datasets
    with watched(as_json=as_json) as progress:
        done = datasets.put(
            source,
            name,
            store=store,
            description=description,
            licence=licence,
            tags=tags,
            follow_links=follow_links,
            repair=repair,
            progress=progress,
        )
    tell(done, as_json)


@click.command(
    cls=Command,
    examples=[
        ("stoker data add coco 'coco2017/**' --store blob", "everything below coco2017"),
        ("stoker data add logs 'logs/2024-*/*.csv' --store blob", "quote it, or the shell takes it for its own"),
    ],
)
@click.argument("name")
@click.argument("pattern")
@click.option("--store", required=True, metavar="STORE", help="Where the files are.")
@about_options
@json_option()
def add(
    name: str, pattern: str, store: str, description: str, licence: str, tags: tuple[str, ...], as_json: bool
) -> None:
    """Register files that are in a store already, as a version of a dataset.

    In PATTERN `**` stands for any number of folders, `*` for anything within a name. Nothing is copied: the files stay
    where they are, and are pinned by their size and etag, so that a change is noticed. Paths in the dataset start
    where the first wildcard is.
    """
    datasets = Client.connect().datasets
    with watched(as_json=as_json) as progress:
        done = datasets.add(
            name, pattern, store=store, description=description, licence=licence, tags=tags, progress=progress
        )
    tell(done, as_json)


def tell(done: Put, as_json: bool) -> None:
    if as_json:
        show_json({"event": "registered", **{name: getattr(done, name) for name in Put.__slots__}})
        return
    for warning in done.warnings:
        say(f"{paint('warning:', 'warn')} {warning}")
    version = done.version
    amount = f"{words.count(version.files, 'file')}, {words.size(version.size_bytes)} in {version.store}"
    sent = f"{words.count(done.sent_files, 'file')}, {words.size(done.sent_bytes)} sent" if done.sent_files else ""
    say(f"{'' if done.new else 'nothing has changed: '}{amount} ({sent or 'nothing to send'})")
    show(version.ref)
