"""`stoker data put`, `add`, `get` and `verify`: uploads and downloads datasets."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from stoker.cli.command import Command, json_option
from stoker.cli.view import words
from stoker.cli.view.summary import seen_from
from stoker.cli.view.terminal import paint, say, show, show_json
from stoker.cli.view.words import watched
from stoker.client.api.client import Client
from stoker.client.data.content import Wrong
from stoker.client.data.putting import Put
from stoker.client.data.registry import About

_COMPLETION_S = 0.5  # a longer wait feels like a hung shell


def dataset_names(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Quick, silent, and never starts a server. With an `@`, the versions."""
    found: list[CompletionItem] = []

    def look() -> None:
        from stoker.client.api.client import Client

        try:
            versions = Client.connect(start=False).datasets.versions()
        except Exception:  # a completion has no way to report it
            return
        names = {one.ref if "@" in incomplete else one.name: one.description for one in reversed(versions)}
        found.extend(CompletionItem(name, help=text) for name, text in names.items() if name.startswith(incomplete))

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    looking.join(_COMPLETION_S)
    return list(found)


_MOST_FAULTS = 20


@click.command(
    cls=Command,
    examples=[
        ("stoker data get hymenoptera", "the newest version, to ./hymenoptera"),
        ("stoker data get hymenoptera@3 /data/bees", "version 3, to another folder"),
    ],
)
@click.argument("ref", metavar="NAME[@VERSION]", shell_complete=dataset_names)
@click.argument("folder", required=False, type=click.Path(file_okay=False, path_type=Path))
@click.option("--overwrite", is_flag=True, help="Replace existing files that differ.")
@json_option()
def get(ref: str, folder: Path | None, overwrite: bool, as_json: bool) -> None:
    """Download a version of a dataset.

    Files that exist already are not downloaded again, so run it again to resume an interrupted download. Every byte is
    verified. Files in the folder that are not part of the dataset are left alone.
    """
    datasets = Client.connect().datasets
    place = folder or Path(ref.partition("@")[0])
    with watched(as_json=as_json) as progress:
        got = datasets.get(ref, place, overwrite=overwrite, progress=progress)
    if as_json:
        facts = {"version": got.version, "folder": str(got.folder), "others": got.others}
        show_json({"event": "brought", **facts, "new_files": got.new_files, "new_bytes": got.new_bytes})
        return
    if got.others:
        verb = "is" if got.others == 1 else "are"
        others = words.count(got.others, "other file")
        say(f"{paint('warning:', 'warn')} {others} in the folder {verb} not part of {got.version.ref}")
    brought = (
        f"{words.count(got.new_files, 'file')}, {words.size_text(got.new_bytes)} downloaded" if got.new_files else ""
    )
    say(f"{got.version.ref}: {words.count(got.version.files, 'file')} ({brought or 'up to date'})")
    show(seen_from(str(got.folder), Path.cwd()))


@click.command(
    cls=Command,
    examples=[
        ("stoker data verify hymenoptera", "read every file and compare hashes"),
        ("stoker data verify hymenoptera@3 --quick", "compare sizes only"),
    ],
)
@click.argument("ref", metavar="NAME[@VERSION]", shell_complete=dataset_names)
@click.option("--quick", is_flag=True, help="Compare only what the store lists; read no file.")
@json_option()
def verify(ref: str, quick: bool, as_json: bool) -> int:
    """Verify that the store still has a version as it was registered.

    Reads every byte and compares its hash. Files registered in place have no hash: their size and etag are compared.
    The exit code is 1 if something differs.
    """
    datasets = Client.connect().datasets
    version = datasets.show(ref)
    with watched(as_json=as_json) as progress:
        faults = datasets.verify(version.ref, quick=quick, progress=progress)
    if as_json:
        told = [{"path": fault.path, "wrong": fault.wrong, "key": fault.key} for fault in faults]
        show_json({"event": "verified", "version": version, "faults": told})
        return 1 if faults else 0
    for fault in faults[:_MOST_FAULTS]:
        show(f"{paint(fault.wrong, 'error')}  {fault.path}")
    if not faults:
        how = "all sizes match" if quick else "every byte matches"
        say(f"{version.ref}: {words.count(version.files, 'file')}, {words.size_text(version.size_bytes)}, {how}")
        return 0
    say(f"{version.ref}: {words.count(len(faults), 'file')} of {version.files:,} differ from what was registered")
    if any(fault.wrong is Wrong.CHANGED for fault in faults):
        say(f"hint: `stoker data add {version.name} PATTERN --store {version.store}` registers the current files")
    else:
        say(f"hint: `stoker data put FOLDER --name {version.name} --repair` uploads them again")
    return 1


def about_options(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def described(description: str, licence: str, tags: tuple[str, ...], **given: Any) -> Any:
        return function(about=About(description, licence, tags), **given)

    for option in (
        click.option("--tag", "tags", multiple=True, metavar="WORD", help="A tag to find it by; repeatable."),
        click.option("--licence", default="", metavar="TEXT", help="Its licence, such as CC-BY-4.0."),
        click.option("--description", default="", metavar="TEXT", help="What it contains, in a sentence."),
    ):
        described = option(described)
    return described


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
    about: About,
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
            about=about,
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
def add(name: str, pattern: str, store: str, about: About, as_json: bool) -> None:
    """Register files that are already in a store, as a version of a dataset.

    In PATTERN `**` matches any number of folders, `*` anything within a name. Nothing is copied: the files stay where
    they are, and are pinned by size and etag, so that a change is detected. Paths in the dataset start at the first
    wildcard.
    """
    datasets = Client.connect().datasets
    with watched(as_json=as_json) as progress:
        done = datasets.add(name, pattern, store=store, about=about, progress=progress)
    tell(done, as_json)


def tell(done: Put, as_json: bool) -> None:
    if as_json:
        show_json({"event": "registered", **{name: getattr(done, name) for name in Put.__slots__}})
        return
    for warning in done.warnings:
        say(f"{paint('warning:', 'warn')} {warning}")
    version = done.version
    amount = f"{words.count(version.files, 'file')}, {words.size_text(version.size_bytes)} in {version.store}"
    sent = (
        f"{words.count(done.sent_files, 'file')}, {words.size_text(done.sent_bytes)} uploaded"
        if done.sent_files
        else ""
    )
    say(f"{'' if done.new else 'unchanged: '}{amount} ({sent or 'nothing to upload'})")
    show(version.ref)
