"""`stoker env`: lists, builds, locks, compares and deletes environments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import click

from stoker.cli.command import Command, Group, job_options, json_option, run_argument, run_names
from stoker.cli.commands.start import jobsource
from stoker.cli.commands.start.attend import attend
from stoker.cli.view import terminal, words
from stoker.cli.view.terminal import one_line, paint_data, say, show_json, write_file
from stoker.cli.view.terminal import show as print_line
from stoker.cli.view.words import Column, TableCell, pairs, table
from stoker.client.api.client import Client
from stoker.client.report.comparison import Change, changes
from stoker.client.settings import from_environment
from stoker.client.software.environments import PlacedEnvironment
from stoker.client.submit.sending import is_elsewhere
from stoker.errors import BadInput, NotFound
from stoker.model.cause import Cause
from stoker.model.environment import ONLY_BUILDS
from stoker.model.job.job import Job

_MOST_RUNS = 200
_COLUMNS = (
    Column("ENVIRONMENT", least=16),
    Column("FROM", least=12),
    Column("PYTHON"),
    Column("PACKAGES", right=True),
    Column("SIZE", right=True),
    Column("WHERE", least=10),
    Column("AGE", right=True),
)


@click.command(cls=Command, examples=[("stoker env ls", "every environment, newest first")])
@json_option()
def ls(as_json: bool) -> None:
    """List environments that were built.

    On the server's computer, and those that nodes keep in a store for your other runs.
    """
    known = Client.connect().environments.all()
    if as_json:
        show_json({"environments": known})
        return
    if not known:
        say("no environments yet: a run with `environment` in its job file builds one")
        return
    now = datetime.now(UTC)
    by_id: dict[str, list[PlacedEnvironment]] = {}
    for one in known:
        by_id.setdefault(one.built.id, []).append(one)
    for line in table(_COLUMNS, [_row(places, now) for places in by_id.values()], terminal.width(), paint_data):
        print_line(line)


@click.command(cls=Command, examples=[("stoker env show ants", "everything about the newest environment of ants")])
@click.argument("ref", metavar="ENVIRONMENT")
@json_option()
def show(ref: str, as_json: bool) -> None:
    """Show everything about an environment.

    ENVIRONMENT is a name, such as ants, a name with an id, such as ants@1a2b3c4d, or an id.
    """
    client = Client.connect()
    places = client.environments.show(ref)
    built = next((one.built for one in places if one.built.size_bytes), places[0].built)
    runs = [run.name for run in client.runs(limit=_MOST_RUNS) if run.environment == built.id]
    if as_json:
        show_json({"environment": built, "stores": [one.store for one in places], "runs": runs})
        return
    now = datetime.now(UTC)
    facts = [
        ("id", built.id),
        ("from", one_line(built.source)),
        ("image", built.image),
        ("python", built.python),
        ("platform", one_line(built.platform)),
        ("built", f"{words.clock(built.at, now)}, in {words.duration(built.built_s)}"),
        ("size", f"{words.count(built.files, 'file')}, {words.size_text(built.size_bytes)}" if built.files else ""),
        ("where", _where(places)),
        ("runs", ", ".join(runs[:10]) + (f" and {len(runs) - 10:,} more" if len(runs) > 10 else "")),
    ]
    for line in [paint_data(places[0].ref, "strong"), *pairs(facts, paint_data), ""]:
        print_line(line)
    rows: list[list[TableCell | str]] = [[name, version] for name, version in _packages(built.packages).items()]
    for line in table((Column("PACKAGE", least=16), Column("VERSION", least=8)), rows, terminal.width(), paint_data):
        print_line(line)


@click.command(
    cls=Command,
    examples=[
        ("stoker env diff ants-6 ants-7", "what two runs really had"),
        ("stoker env diff ants@1a2b3c4d ants-7", "an environment and a run"),
    ],
)
@click.argument("first", metavar="RUN|ENVIRONMENT", shell_complete=run_names)
@click.argument("second", metavar="RUN|ENVIRONMENT", shell_complete=run_names)
@json_option()
def diff(first: str, second: str, as_json: bool) -> None:
    """Compare the software of two runs or environments.

    Packages and Python; of two runs, also what their nodes were: CPU, glibc, driver and CUDA.
    """
    client = Client.connect()
    ours, theirs = _side(client, first), _side(client, second)
    packages = changes(ours.packages, theirs.packages)
    system = changes(ours.system, theirs.system) if ours.system and theirs.system else ()
    if as_json:
        show_json({"packages": packages, "system": system, "same": not packages})
        return
    for title, found in (("PACKAGE", packages), ("SYSTEM", system)):
        columns = (Column(title, least=12), Column(ours.title, least=12), Column(theirs.title, least=12))
        for line in table(columns, [_change(one) for one in found], terminal.width(), paint_data) if found else ():
            print_line(line)
    if not packages:
        say(f"the same {words.count(len(_packages(ours.packages)), 'package')} and Python")


@click.command(
    cls=Command,
    examples=[
        ("stoker env build", "build the environment of stoker.yaml before it is needed"),
        ("stoker env build --on azure", "on a machine there, and keep it in the store"),
    ],
)
@job_options()
@click.option("-d", "--detach", is_flag=True, help="Submit the run that builds it, print its name, and return.")
@json_option()
def build(
    file: str, sets: tuple[str, ...], on: str, name: str, env: tuple[str, ...], detach: bool, as_json: bool
) -> int:
    """Build the environment of a job before a run needs it.

    Starts a run that does nothing else, on one node. Runs on other nodes then restore the environment.
    """
    source = jobsource.read(file, sets, on, env)
    _check_declared(source.job)
    client = Client.connect()
    run = client.submit(_only_builds(source.job), source.folder, name=name, say=say, notice=say)
    return attend(client, run, f"{run.name} builds the environment", detach=detach, as_json=as_json)


@click.command(
    cls=Command,
    examples=[
        ("stoker env lock", "print the lock of the environment of stoker.yaml"),
        ("stoker env lock --upgrade -o requirements.lock", "with the newest versions, into a file"),
    ],
)
@job_options()
@click.option("--upgrade", is_flag=True, help="Ask the index again, instead of using the lock from before.")
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write it to this file.")
@json_option()
def lock(
    file: str,
    sets: tuple[str, ...],
    on: str,
    name: str,  # noqa: ARG001  # one of the options of every job
    env: tuple[str, ...],
    upgrade: bool,
    output: Path | None,
    as_json: bool,
) -> None:
    """Print the lock that a run would get: exact versions with their hashes.

    With --upgrade, the next run gets this one, too.
    """
    from stoker.client.software import locking  # slow to import, and this command's alone

    source, settings = jobsource.read(file, sets, on, env), from_environment()
    elsewhere = bool(source.job.on != "local") and is_elsewhere(source.job, Client.connect().connection)
    found = locking.lock(source.job, source.folder, settings, elsewhere=elsewhere, upgrade=upgrade)
    if not found.text:
        _refuse_unlocked(source.job, found.notes)
    _give(found.text, found.notes, output, as_json, {"packages": found.packages, "id": found.id})


@click.command(
    cls=Command,
    examples=[
        ("stoker env freeze ants-7 -o requirements.lock", "write down what ants-7 had"),
        ("stoker env freeze", "print what the newest run had"),
    ],
)
@run_argument()
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write it to this file.")
@json_option()
def freeze(name: str, output: Path | None, as_json: bool) -> None:
    """Print the lock of what a run really had. Without RUN: the newest.

    Name the file as `environment` in a job, and its runs get the same packages.
    """
    client = Client.connect()
    found = client.environments.freeze(client.run(name).facts)
    _give(found.text, found.notes, output, as_json, {})


@click.command(cls=Command, examples=[("stoker env rm ants@1a2b3c4d", "delete it everywhere")])
@click.argument("ref", metavar="ENVIRONMENT")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@json_option()
def rm(ref: str, yes: bool, as_json: bool) -> int:
    """Delete an environment, on the server's computer and in stores.

    A run that needs it again builds it again. Nodes that have a copy keep it.
    """
    client = Client.connect()
    places = client.environments.show(ref)
    if not terminal.confirmed(f"delete {places[0].ref} ({_where(places)})?", yes=yes, as_json=as_json):
        return 1
    removed = client.environments.remove(places[0].built.id)
    if as_json:
        show_json({"removed": removed})
        return 0
    say(f"deleted {removed[0].ref}")
    return 0


def _row(places: Sequence[PlacedEnvironment], now: datetime) -> list[TableCell | str]:
    built = next((one.built for one in places if one.built.size_bytes), places[0].built)
    return [
        places[0].ref,
        one_line(built.source),
        built.python,
        "" if built.image else f"{len(_packages(built.packages)):,}",
        words.size_text(built.size_bytes) if built.size_bytes else "",
        _where(places),
        words.age(built.at, now),
    ]


def _where(places: Sequence[PlacedEnvironment]) -> str:
    return ", ".join(dict.fromkeys(one.store or "this computer" for one in places))


def _packages(found: Mapping[str, str]) -> dict[str, str]:
    return {one_line(name): one_line(version) for name, version in found.items() if name != "python"}


@dataclass(frozen=True, slots=True)
class _Side:
    title: str
    packages: Mapping[str, str]
    system: Mapping[str, str]


def _side(client: Client, name: str) -> _Side:
    if "@" not in name:
        try:
            run = client.run(name).facts
            image = {"image": run.image} if run.image else {}
            return _Side(run.name, run.packages, {**run.system, **image})
        except NotFound:
            pass
    one = client.environments.show(name)[0]
    return _Side(one.ref, one.built.packages, {})


def _change(one: Change) -> list[TableCell | str]:
    sides = (one.first, one.second)
    return [one_line(one.name), *(TableCell("-", "faint") if each is None else one_line(each) for each in sides)]


def _check_declared(job: Job) -> None:
    wanted = job.environment
    if not (wanted.requirements or wanted.contained):
        raise BadInput(
            "the job has no `environment` to build: it uses the Python that submits",
            hint="name a file of packages: `--set environment=requirements.txt`",
            cause=Cause.NOTHING_TO_LOCK,
        )


def _only_builds(job: Job) -> Job:
    """The same place and environment, and a command that does nothing."""
    asked = ("source", "environment", "on", "env", "secrets")
    machine = ("cpus", "memory", "gpus", "gpu", "size", "region", "spot", "budget", "lease")
    given = {name: getattr(job, name) for name in (*asked, *machine)}
    return Job(name=f"{job.name}{ONLY_BUILDS}", run="true", **given)


def _refuse_unlocked(job: Job, notes: Sequence[str]) -> None:
    named = job.environment.requirements
    other = f"`{named}` names no packages for this Python, is a lock already, or is installed by conda"
    reason = notes[0] if notes else other
    raise BadInput(
        reason if named else "the job names no file of packages to lock",
        hint="name one: `--set environment=requirements.txt`; or `stoker env freeze RUN` for what a run had",
        cause=Cause.NOTHING_TO_LOCK,
    )


def _give(text: str, notes: Sequence[str], output: Path | None, as_json: bool, facts: Mapping[str, object]) -> None:
    for note in notes:
        say(note)
    if output:
        write_file(output, text, "--output")
        say(f"wrote {output}")
    if as_json:
        show_json({"lock": text, "notes": list(notes), **facts})
    elif not output:
        print_line(text.rstrip("\n"))


@click.group(
    cls=Group,
    examples=[
        ("stoker env ls", "list environments"),
        ("stoker env build --on azure", "build one before a run needs it"),
        ("stoker env freeze ants-7 -o requirements.lock", "write down what a run had"),
    ],
)
def command() -> None:
    """List, build, lock and compare environments.

    An environment is what a run's packages are installed in: a venv, or an image from a Dockerfile. It is identified by
    its content (lock, Python and platform; Dockerfile and context), built once, and used by all runs that need it.
    """


for part in (ls, show, diff, build, lock, freeze, rm):
    command.add_command(part)
