"""`stoker fetch`: files of a run to this computer."""

from __future__ import annotations

from pathlib import Path

import click

from stoker.cli.command import Command, json_option, run_argument
from stoker.cli.view import words
from stoker.cli.view.ending import seen_from
from stoker.cli.view.terminal import say, show, show_json
from stoker.cli.view.transfer import watched
from stoker.client.api.client import Client
from stoker.client.api.fetching import Wanted, What
from stoker.errors import BadInput, NotFound
from stoker.model.run.run import Run


@click.command(
    cls=Command,
    examples=[
        ("stoker fetch ants-7", "bring its outputs to ./outputs/ants-7"),
        ("stoker fetch --into /tmp/results", "the newest run's, to another folder"),
        ("stoker fetch ants-7 --checkpoints", "its newest checkpoint, also while it runs"),
        ("stoker fetch ants-7 --stray --only model.pt", "a file that it left outside its outputs"),
    ],
)
@run_argument()
@click.option("--into", type=click.Path(file_okay=False, path_type=Path), help="Folder to put it in [./outputs].")
@click.option("--checkpoints", is_flag=True, help="The newest checkpoint instead of the outputs.")
@click.option("--stray", is_flag=True, help="What the script left outside its outputs and checkpoints.")
@click.option("--only", default="", metavar="PATH", help="Only this file or folder, or what a pattern matches.")
@json_option()
def command(name: str, into: Path | None, checkpoints: bool, stray: bool, only: str, as_json: bool) -> None:
    """Bring the outputs of a run here.

    A run submitted from this computer brings them back by itself, with its newest checkpoint unless that is larger than
    1 GB; this gets them once more, or elsewhere, or from a run that is still going. Every byte is verified. Without
    RUN: the newest.
    """
    if checkpoints and stray:
        raise BadInput("`--checkpoints` and `--stray` do not go together", hint="fetch one after the other")
    what = What.CHECKPOINT if checkpoints else What.STRAY if stray else What.BROUGHT
    run = Client.connect().run(name)
    with watched(as_json=as_json) as progress:
        folder, files = run.fetch_files(Wanted(what, only), into, progress=progress)
    if not files and (only or what is not What.BROUGHT):
        raise _nothing(run.facts, what, only)
    if as_json:
        show_json({"run": run.name, "folder": str(folder), "files": [entry.path for entry in files]})
        return
    say(f"{run.name}: {words.count(len(files), 'file')}, {words.size(sum(entry.size_bytes for entry in files))}")
    show(seen_from(str(folder), Path.cwd()))


def _nothing(run: Run, what: What, only: str) -> NotFound:
    which = {What.CHECKPOINT: "checkpoint", What.STRAY: "stray files", What.BROUGHT: "outputs"}[what]
    if only:
        return NotFound(
            f"no file of the {which} of {run.name} is `{only}`", hint=f"all of them: stoker fetch {run.name}"
        )
    why = "none has been committed yet" if what is What.CHECKPOINT and not run.state.ended else "it left none"
    return NotFound(f"{run.name} has no {which}: {why}", hint=f"stoker show {run.name}")
