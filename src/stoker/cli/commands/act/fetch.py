"""`stoker fetch`: downloads files of a run."""

from __future__ import annotations

from pathlib import Path

import click

from stoker.cli.command import Command, json_option, run_argument
from stoker.cli.view import words
from stoker.cli.view.summary import seen_from
from stoker.cli.view.terminal import say, show, show_json
from stoker.cli.view.words import watched
from stoker.client.api.client import Client
from stoker.client.api.reading import WantedResults, What
from stoker.errors import BadInput, NotFound
from stoker.model.cause import Cause
from stoker.model.run.run import Run, RunState


@click.command(
    cls=Command,
    examples=[
        ("stoker fetch ants-7", "download its outputs to ./outputs/ants-7"),
        ("stoker fetch --into /tmp/results", "the outputs of the newest run, to another folder"),
        ("stoker fetch ants-7 --checkpoints", "its newest checkpoint, also while it runs"),
        ("stoker fetch ants-7 --stray --only model.pt", "a file that it wrote outside its outputs"),
    ],
)
@run_argument()
@click.option(
    "--into", type=click.Path(file_okay=False, path_type=Path), help="Folder to download to [default: ./outputs]."
)
@click.option("--checkpoints", is_flag=True, help="Download the newest checkpoint instead of the outputs.")
@click.option("--stray", is_flag=True, help="Download files that the script wrote outside its outputs and checkpoints.")
@click.option("--only", default="", metavar="PATH", help="Only this file or folder, or files that match this pattern.")
@json_option()
def command(name: str, into: Path | None, checkpoints: bool, stray: bool, only: str, as_json: bool) -> None:
    """Download the outputs of a run.

    A run submitted from this computer downloads them at its end, with its newest checkpoint unless that is larger than
    1 GB. Use this command to download them again, to another folder, or while the run is active. Every byte is
    verified. Without RUN: the newest.
    """
    if checkpoints and stray:
        raise BadInput(
            "`--checkpoints` and `--stray` cannot be combined",
            hint="fetch one after the other",
            cause=Cause.OPTIONS_CONFLICT,
        )
    what = What.CHECKPOINT if checkpoints else What.STRAY if stray else What.BROUGHT
    run = Client.connect().run(name)
    with watched(as_json=as_json) as progress:
        folder, files = run.fetch_files(WantedResults(what, only), into, progress=progress)
    if not files and (only or what is not What.BROUGHT):
        raise _nothing(run.facts, what, only)
    if as_json:
        show_json({"run": run.name, "folder": str(folder), "files": [entry.path for entry in files]})
        return
    say(f"{run.name}: {words.count(len(files), 'file')}, {words.size_text(sum(entry.size_bytes for entry in files))}")
    show(seen_from(str(folder), Path.cwd()))


def _nothing(run: Run, what: What, only: str) -> NotFound:
    which = {What.CHECKPOINT: "checkpoint", What.STRAY: "stray files", What.BROUGHT: "outputs"}[what]
    if only:
        return NotFound(
            f"the {which} of {run.name} contain no file `{only}`",
            hint=f"download all: stoker fetch {run.name}",
            cause=Cause.FILE_MISSING,
        )
    cause = Cause.NO_CHECKPOINT if what is What.CHECKPOINT else Cause.NO_FILES
    return NotFound(f"{run.name} has no {which}: {_why(run, what)}", hint=f"stoker show {run.name}", cause=cause)


def _why(run: Run, what: What) -> str:
    if what is not What.CHECKPOINT or run.state is RunState.SUCCEEDED:
        return "it wrote none"
    if not run.state.ended:
        return "none has been committed yet"
    return (
        "none was committed in time. What a script writes within its last second may be half written, and is not kept"
    )
