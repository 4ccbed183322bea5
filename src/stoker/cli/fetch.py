"""`stoker fetch`: outputs to this computer."""

from __future__ import annotations

from pathlib import Path

import click

from stoker.cli import words
from stoker.cli.command import Command, json_option, run_argument
from stoker.cli.ending import seen_from
from stoker.cli.terminal import say, show, show_json
from stoker.cli.transferview import watched
from stoker.client.client import Client


@click.command(
    cls=Command,
    examples=[
        ("stoker fetch ants-7", "bring its outputs to ./outputs/ants-7"),
        ("stoker fetch --into /tmp/results", "the newest run's, to another folder"),
    ],
)
@run_argument()
@click.option("--into", type=click.Path(file_okay=False, path_type=Path), help="Folder to put it in [./outputs].")
@json_option()
def command(name: str, into: Path | None, as_json: bool) -> None:
    """Bring the outputs of a run here.

    A run submitted from this computer brings them back by itself; this gets them once more, or elsewhere, or from a
    run that is still going. Every byte is verified. Without RUN: the newest.
    """
    run = Client.connect().run(name)
    with watched(as_json=as_json) as progress:
        folder = run.fetch(into, progress=progress)
    if as_json:
        show_json({"run": run.name, "folder": str(folder)})
        return
    facts = run.facts
    say(f"{run.name}: {words.count(facts.output_files, 'file')}, {words.size(facts.output_bytes)}")
    show(seen_from(str(folder), Path.cwd()))
