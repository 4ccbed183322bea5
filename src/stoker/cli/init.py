"""`stoker init`: a first job file."""

from __future__ import annotations

from pathlib import Path

import click

from stoker.cli.command import Command, json_option
from stoker.cli.terminal import say, show_json
from stoker.client import jobfile
from stoker.client.starter import starter
from stoker.errors import BadInput, Conflict
from stoker.model.job import Job

_FILE = "stoker.yaml"


@click.command(
    cls=Command,
    examples=[
        ("stoker init", "look at this folder and write stoker.yaml"),
        ("stoker init src/train.py", "for this script, if there are several"),
        ("stoker init --force", "write it anew"),
    ],
)
@click.argument("script", required=False, type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help=f"Replace a {_FILE} that is there.")
@json_option()
def command(script: Path | None, force: bool, as_json: bool) -> None:
    """Write a first job file for this folder.

    Looks for the training script unless you name it, for its arguments, requirements and data. Files are read, never
    run.
    """
    path = Path(_FILE)
    text = starter(Path.cwd(), script)
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        hint = "look at it with `stoker plan`, or replace it with `stoker init --force`"
        raise Conflict(f"there is a `{_FILE}` here already", hint=hint) from None
    except OSError as error:
        raise BadInput(f"`{_FILE}` cannot be written here: {(error.strerror or str(error)).lower()}") from None
    job = jobfile.read(path).job
    if as_json:
        show_json({"file": str(path.absolute()), "job": job})
        return
    say(f"wrote {_FILE}")
    for line in found(job):
        say(f"  {line}")
    say("next: `stoker plan` shows what would happen, `stoker run` runs it")


def found(job: Job) -> list[str]:
    """What the file says, in a few lines."""
    lines = [f"command   {job.run}"]
    software = job.environment.requirements or job.environment.image or job.environment.dockerfile
    lines.append(f"software  {software}" if software else "software  the Python you use now")
    lines += [f"data      {name}: {use.dataset or use.path}" for name, use in job.data.items()]
    return lines
