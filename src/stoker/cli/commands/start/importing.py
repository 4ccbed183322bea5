"""`stoker import`: a job file from a batch script or from a job of another system."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from stoker.cli.command import Command, Group, json_option
from stoker.cli.view.terminal import say, show, show_json
from stoker.client.importing import azureml, slurm
from stoker.client.importing.translation import Translation, original
from stoker.client.submit import jobfile
from stoker.errors import BadInput, Conflict
from stoker.model.cause import Cause

_FILE = "stoker.yaml"


@click.group(
    cls=Group,
    examples=[
        ("stoker import slurm train.sbatch", "write stoker.yaml from a batch script"),
        ("stoker import azureml job.yml", "write stoker.yaml from a command or sweep job"),
        ("stoker import slurm train.sbatch --stdout", "print it, and write nothing"),
    ],
)
def command() -> None:
    """Write a job file from a Slurm script or an Azure ML job.

    The file is read, never executed. What a job file has no field for is listed with its line and what to do
    instead, on the terminal and at the end of the job file.
    """


def _options(function: Callable[..., Any]) -> Callable[..., Any]:
    function = json_option()(function)
    function = click.option("--stdout", is_flag=True, help="Print the job file, and write nothing.")(function)
    function = click.option("--force", is_flag=True, help="Replace an existing job file.")(function)
    function = click.option(
        "--to", default=_FILE, metavar="FILE", type=click.Path(path_type=Path), help=f"The job file [default: {_FILE}]."
    )(function)
    return click.argument("file", type=click.Path(path_type=Path))(function)


@command.command(
    "slurm",
    cls=Command,
    examples=[
        ("stoker import slurm train.sbatch", "write stoker.yaml"),
        ("stoker import slurm train.sbatch --to jobs/large.yaml", "write another file"),
    ],
)
@_options
def from_slurm(file: Path, **options: Any) -> None:
    """Write a job file from a batch script for `sbatch`.

    `#SBATCH` lines become fields of the job file, `--array` a matrix, `srun`, `torchrun` and `mpirun` its launcher.
    """
    _write(file, slurm.translated(original(file), str(file)), **options)


@command.command(
    "azureml",
    cls=Command,
    examples=[
        ("stoker import azureml job.yml", "write stoker.yaml"),
        ("stoker import azureml sweep.yml --force", "write it again"),
    ],
)
@_options
def from_azureml(file: Path, **options: Any) -> None:
    """Write a job file from an Azure ML job in YAML (v2).

    Command and sweep jobs can be imported; a search space becomes a matrix. Pipelines are refused.
    """
    target = Path() if options["stdout"] else options["to"].parent
    folder = Path(os.path.relpath(file.parent, target)).as_posix()
    _write(file, azureml.translated(original(file), str(file), folder), **options)


def _write(file: Path, found: Translation, *, to: Path, force: bool, stdout: bool, as_json: bool) -> None:
    text = found.text()
    if not stdout:
        _save(to, text, force=force)
    if as_json:
        lacking = [{"file": str(file), **asdict(one)} for one in found.unmapped]
        job = jobfile.read_text(text, to).job
        show_json({"file": "" if stdout else str(to.absolute()), "job": job, "text": text, "unmapped": lacking})
        return
    if stdout:
        show(text.removesuffix("\n"))
    else:
        say(f"wrote {to}")
    if found.unmapped:
        say("without a counterpart:")
    for one in found.unmapped:
        say(f"  {file}:{one.line}: {one.what}\n      {one.instead}")
    for note in found.notes:
        if note.startswith("Once: "):
            say(note)
    if not stdout:
        say("next: preview it with `stoker plan`")


def _save(to: Path, text: str, *, force: bool) -> None:
    try:
        with to.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        hint = "replace it with `--force`, print the new one with `--stdout`, or name another file with `--to`"
        raise Conflict(f"`{to}` exists already", hint=hint, cause=Cause.FILE_EXISTS) from None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise BadInput(f"`{to}` cannot be written: {reason}", cause=Cause.FILE_UNWRITABLE) from None
