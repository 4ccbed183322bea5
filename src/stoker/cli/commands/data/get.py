"""`stoker data get` and `stoker data verify`: downloads or verifies a dataset."""

from __future__ import annotations

import threading
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from stoker.cli.command import Command, json_option
from stoker.cli.view import words
from stoker.cli.view.ending import seen_from
from stoker.cli.view.terminal import paint, say, show, show_json
from stoker.cli.view.transfer import watched
from stoker.client.api.client import Client
from stoker.client.data.verifying import Wrong

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
    brought = f"{words.count(got.new_files, 'file')}, {words.size(got.new_bytes)} downloaded" if got.new_files else ""
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
        say(f"{version.ref}: {words.count(version.files, 'file')}, {words.size(version.size_bytes)}, {how}")
        return 0
    say(f"{version.ref}: {words.count(len(faults), 'file')} of {version.files:,} differ from what was registered")
    if any(fault.wrong is Wrong.CHANGED for fault in faults):
        say(f"hint: `stoker data add {version.name} PATTERN --store {version.store}` registers the current files")
    else:
        say(f"hint: `stoker data put FOLDER --name {version.name} --repair` uploads them again")
    return 1
