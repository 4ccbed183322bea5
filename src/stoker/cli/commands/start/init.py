"""`stoker init`: a first job file."""

from __future__ import annotations

from pathlib import Path

import click

from stoker.cli.command import Command, json_option
from stoker.cli.view import terminal
from stoker.cli.view.terminal import say, show_json
from stoker.client.script import opened
from stoker.client.script.starter import ENVIRONMENTS, Proposal, bring, propose
from stoker.client.settings import from_environment
from stoker.client.source import screening
from stoker.client.source.tree import scan
from stoker.client.submit import jobfile
from stoker.errors import BadInput, Conflict, SnapshotRefused
from stoker.model.cause import Cause
from stoker.model.job.job import Job

_FILE = "stoker.yaml"


@click.command(
    cls=Command,
    examples=[
        ("stoker init", "inspect this folder and write stoker.yaml"),
        ("stoker init src/train.py", "for this script, if there are several"),
        ("stoker init --force", "write it again"),
    ],
)
@click.argument("script", required=False, type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help=f"Replace an existing {_FILE}.")
@json_option()
def command(script: Path | None, force: bool, as_json: bool) -> None:
    """Write a first job file for this folder.

    Finds the training script unless you name it, its arguments, requirements and data. Files are read, never executed.
    """
    path = Path(_FILE)
    proposal = propose(Path.cwd(), script)
    if proposal.others and not as_json and terminal.interactive():
        proposal = _asked(proposal)
    text = proposal.text
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        hint = "show it with `stoker plan`, or replace it with `stoker init --force`"
        raise Conflict(f"`{_FILE}` exists already", hint=hint, cause=Cause.FILE_EXISTS) from None
    except OSError as error:
        raise BadInput(
            f"`{_FILE}` cannot be written: {(error.strerror or str(error)).lower()}", cause=Cause.FILE_UNWRITABLE
        ) from None
    job, told = _completed(path, text)
    if as_json:
        show_json(
            {
                "file": str(path.absolute()),
                "job": job,
                "script": proposal.script,
                "others": proposal.others,
                "advice": proposal.advice,
            }
        )
        return
    say(f"wrote {_FILE}" + (f" for {proposal.script}" if proposal.script else ""))
    if proposal.others:
        say(f"  other scripts: {', '.join(proposal.others)}; choose one with `stoker init SCRIPT --force`")
    for line in found(job):
        say(f"  {line}")
    for line in (*proposal.advice, *told):
        say(line)
    say("next: preview it with `stoker plan`, or run it with `stoker run`")


def _asked(proposal: Proposal) -> Proposal:
    """The script to use if there are several; Enter chooses the first."""
    known = [proposal.script, *proposal.others]
    for number, name in enumerate(known, start=1):
        say(f"  {number}  {name}")
    number = terminal.ask_number("which is the training script?", most=len(known))
    return propose(Path.cwd(), Path(known[number - 1])) if number > 1 else proposal


def _completed(path: Path, text: str) -> tuple[Job, list[str]]:
    """The job, with files that its script opens but that would not be uploaded, and findings about secrets.

    A folder that is too large is reported by `plan`.
    """
    from stoker.client.submit.preparation import index_of  # the first run reuses this index

    job, source = jobfile.read(path).job, Path.cwd()
    try:
        exclude = (
            job.outputs,
            *(one.rstrip("/") for one in job.checkpoints),
            *(use.path for use in job.data.values() if use.path),
        )
        tree = scan(source, index=index_of(from_environment(), source), exclude=exclude)
    except SnapshotRefused:
        return job, []
    lines = screening.lines(tree.findings)
    try:
        screening.check(tree.findings)
    except SnapshotRefused as error:
        lines += [f"before a run: {error.message}", f"hint: {error.hint}"]
    wanted = [one for one in opened.lacking(job, tree) if one.can_be_brought and one.name not in job.data]
    lacking = {one.name: one for one in reversed(wanted)}
    if not lacking:
        return job, [*lines, *opened.missing(job, tree)]
    path.write_text(bring(text, {one.entry: _reason(one) for one in lacking.values()}), encoding="utf-8")
    job = jobfile.read(path).job
    return job, [*lines, *opened.missing(job, tree)]


def _reason(one: opened.Lacking) -> str:
    why = "an ignore file excludes it" if one.inside else "it is not in this folder"
    return f"{one.opener} {one.use} it, but {why}"


def found(job: Job) -> list[str]:
    """The job file in a few lines."""
    lines = [f"command   {job.run}"]
    software = job.environment.requirements or job.environment.image or job.environment.dockerfile
    other = next((name for name in ENVIRONMENTS if Path(name).is_file()), "")
    beside = f"; found {other}: to use it, remove the `#` before `environment`" if other else ""
    lines.append(f"software  {software}" if software else f"software  your current Python{beside}")
    lines.append(f"saves     {', '.join(dict.fromkeys([job.outputs, *job.checkpoints]))}")
    lines += [f"resumes   with {job.resume}"] if job.resume else []
    lines += [f"data      {name}: {use.dataset or use.path}" for name, use in job.data.items()]
    return lines
