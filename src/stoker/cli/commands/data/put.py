"""`stoker data put` and `stoker data add`: creates a version of a dataset."""

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
        click.option("--tag", "tags", multiple=True, metavar="WORD", help="A tag to find it by; repeatable."),
        click.option("--licence", default="", metavar="TEXT", help="Its licence, such as CC-BY-4.0."),
        click.option("--description", default="", metavar="TEXT", help="What it contains, in a sentence."),
    ):
        function = option(function)
    return function


@click.command(
    cls=Command,
    examples=[
        ("stoker data put ./hymenoptera_data --name hymenoptera", "upload a folder to the workspace's store"),
        ("stoker data put ratings.csv --name ratings --store blob", "upload one file to another store"),
    ],
)
@click.argument("source", metavar="FOLDER|FILE", type=click.Path(path_type=Path))
@click.option("--name", required=True, help="Name of the dataset.")
@click.option("--store", default="", metavar="STORE", help="Store to upload to  [default: the workspace's store].")
@about_options
@click.option("--follow-links", is_flag=True, help="Include the targets of links that leave the folder.")
@click.option("--repair", is_flag=True, help="Verify the files in the store, and upload damaged or missing ones again.")
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
    """Upload a folder or a file, as a version of a dataset.

    Only content that the store lacks is uploaded, and everything is verified. If nothing has changed, no new version is
    created. Run it again to resume an interrupted upload.
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
        ("stoker data add logs 'logs/2024-*/*.csv' --store blob", "quote the pattern, or the shell expands it"),
    ],
)
@click.argument("name")
@click.argument("pattern")
@click.option("--store", required=True, metavar="STORE", help="Store that contains the files.")
@about_options
@json_option()
def add(
    name: str, pattern: str, store: str, description: str, licence: str, tags: tuple[str, ...], as_json: bool
) -> None:
    """Register files that are already in a store, as a version of a dataset.

    In PATTERN `**` matches any number of folders, `*` anything within a name. Nothing is copied: the files stay where
    they are, and are pinned by size and etag, so that a change is detected. Paths in the dataset start at the first
    wildcard.
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
    sent = f"{words.count(done.sent_files, 'file')}, {words.size(done.sent_bytes)} uploaded" if done.sent_files else ""
    say(f"{'' if done.new else 'unchanged: '}{amount} ({sent or 'nothing to upload'})")
    show(version.ref)
