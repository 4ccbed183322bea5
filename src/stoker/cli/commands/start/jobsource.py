"""The job that a command line names: a file, and the fields that `--set` and `--on` override."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path, PurePosixPath

from stoker.cli.view.terminal import say
from stoker.client.settings import from_environment
from stoker.client.submit import jobfile
from stoker.client.submit.jobfile import JobFile
from stoker.client.submit.surroundings import hint, secret_kind
from stoker.errors import BadInput, JobInvalid
from stoker.model.cause import Cause
from stoker.model.job.commandline import NOTEBOOK, ShellCommand, commands
from stoker.model.job.fields import encodable

_SCRIPTS = (".py", NOTEBOOK)


def read(file: str, sets: Sequence[str], on: str, env: Sequence[str] = ()) -> JobFile:
    """A folder stands for the `stoker.yaml` in it, and a script for the job that runs it. `env` are variables: each is
    `NAME=value`, or a name from the shell."""
    path = Path(file)
    if path.is_dir():
        path = path / "stoker.yaml"
    sets = [*sets, f"on={on}"] if on else sets
    source = _for_script(path, sets) if path.suffix in _SCRIPTS else jobfile.read(path, sets)
    given = _variables(env, source.job.secrets)
    return replace(source, job=replace(source.job, env={**source.job.env, **given})) if given else source


def _for_script(script: Path, sets: Sequence[str]) -> JobFile:
    """A script or a notebook in place of a job file: the job file that runs it, or what `init` would write."""
    folder = Path.cwd() if script.absolute().is_relative_to(Path.cwd()) else script.absolute().parent
    inside, beside = script.absolute().relative_to(folder), folder / "stoker.yaml"
    if not beside.is_file():
        from stoker.client.script.starter import starter  # not needed with a job file

        say(f"no stoker.yaml here: running {inside} with the settings of `stoker init {shlex.quote(str(inside))}`")
        return jobfile.read_text(starter(folder, inside), beside, sets)
    source = jobfile.read(beside, sets)
    if not any(_starts(command, inside) for command in commands(source.job.run)):
        line = f"{'' if inside.suffix == NOTEBOOK else 'python '}{shlex.quote(str(inside))}"
        hint = f"`stoker run --set {shlex.quote(f'run={line}')}` runs it with the other settings of stoker.yaml"
        raise BadInput(
            f"the stoker.yaml here runs `{source.job.run}`, not {inside}", hint=hint, cause=Cause.OTHER_SCRIPT
        )
    return source


def _starts(command: ShellCommand, script: Path) -> bool:
    """Also as a module of a package. Not through `cd`, which is not followed here."""
    module = ".".join(script.with_suffix("").parts)
    return PurePosixPath(command.script) == PurePosixPath(script) or command.module in (
        module,
        module.removesuffix(".__main__"),
    )


def _variables(env: Sequence[str], secrets: Sequence[str]) -> dict[str, str]:
    """Raises BadInput for a variable that the shell lacks, and for a secret, which would be stored with the run."""
    given: dict[str, str] = {}
    for one in env:
        name, equals, text = one.partition("=")
        if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) or name.startswith("STOKER_"):
            raise BadInput(f"--env {one}: expected NAME or NAME=VALUE", hint="for example `--env OMP_NUM_THREADS=1`")
        value = text if equals else from_environment().variable(name)
        if value is None:
            raise BadInput(
                f"--env {name}: not set in your shell",
                hint=f"use `--env {name}=VALUE`, or export it",
                cause=Cause.VARIABLE_MISSING,
            )
        if "\0" in value or not encodable(value):
            raise BadInput(f"--env {name}: its value is not valid UTF-8")
        if name in secrets:
            raise BadInput(f"--env {name}: the job lists it in `secrets`", hint=f"export {name}=…")
        if kind := secret_kind(name, value):
            raise BadInput(
                f"--env {name} is a secret ({kind}), and variables of a job are stored with its runs",
                hint=hint(name),
                cause=Cause.SECRET_FOUND,
            )
        given[name] = value
    return given


@contextmanager
def located(source: JobFile) -> Iterator[None]:
    """Adds file, line and column to an invalid job found in here, by a server too."""
    try:
        yield
    except JobInvalid as error:
        raise source.locate(error) from None
