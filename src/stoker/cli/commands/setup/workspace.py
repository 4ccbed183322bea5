"""`stoker workspace`: the team's account and store, from the one file that an administrator hands over."""

from __future__ import annotations

import click

from stoker.cli.command import Command, Group, json_option
from stoker.cli.commands.setup import store
from stoker.cli.view import terminal
from stoker.cli.view.tables import Cell, Column, pairs, table
from stoker.cli.view.terminal import paint_data, say, show, show_json
from stoker.client.local.workspace import Joined, Place, Workspaces
from stoker.client.settings import from_environment
from stoker.errors import NotFound
from stoker.model.workspace.handover import Handover

_COLUMNS = (Column("WORKSPACE", least=12), Column("IN USE"), Column("ON"), Column("STORE", least=20))


@click.group(
    cls=Group,
    examples=[
        ("stoker workspace use team.json", "from the file of your administrator"),
        ("stoker workspace ls", "those that this computer knows"),
        ("stoker workspace use vision-team", "go back to one of them"),
    ],
)
def command() -> None:
    """Use your team's cloud and store, from one file.

    The file comes from your administrator, who made it with `stoker admin setup`, and holds no secret: log in yourself,
    as with `az login`.
    """


@command.command(
    cls=Command,
    examples=[
        ("stoker workspace use team.json", "set up this computer by it"),
        ("stoker workspace use vision-team", "one that this computer knows already"),
        ("stoker workspace use team.json --trust minio.lab:9000", "its store is not at a public cloud"),
    ],
)
@click.argument("file", metavar="FILE|NAME")
@click.option(
    "--trust", "trusted", multiple=True, metavar="PLACE", help="Agree to a host or folder of the file; may be repeated."
)
@json_option()
def use(file: str, trusted: tuple[str, ...], as_json: bool) -> int:
    """Use the workspace of a file, or one that is known by name.

    Its account becomes the one that jobs run on, and its store the one of new runs. The store is tried first, with your
    own login: where it does not work, nothing changes, and you are told what is missing.

    Your login, your code and your data go where the file says. Hosts that are not the cloud's own, and folders, are
    shown first and need your consent: at the prompt, or with --trust where there is none.
    """
    workspaces = Workspaces(from_environment())
    handover = workspaces.read(file)
    strange = [one for one in workspaces.strange(handover) if not one.trusted(trusted)]
    if strange and terminal.interactive() and not as_json:
        if not _agreed(strange):
            return 1
        trusted += tuple(one.where for one in strange)
    joined = workspaces.use(handover, trusted)
    if as_json:
        show_json(
            {"workspace": joined.handover, "used": joined.works, "findings": joined.findings, "kept": joined.kept}
        )
    else:
        _tell(joined)
    return 0 if joined.works else 1


@command.command(cls=Command, examples=[("stoker workspace ls", "every one, and which is in use")])
@json_option()
def ls(as_json: bool) -> None:
    """List the workspaces that this computer knows."""
    workspaces = Workspaces(from_environment())
    known, used = workspaces.all(), workspaces.in_use
    if as_json:
        show_json({"workspaces": known, "in_use": used or None})
        return
    if not known:
        say("no workspace is known here; `stoker workspace use FILE` takes one from your administrator's file")
        return
    rows = [
        [
            one.name,
            Cell("yes", "good") if one.name == used else "",
            ", ".join(one.accounts),
            one.store.url if one.store else "",
        ]
        for one in known
    ]
    for line in table(_COLUMNS, rows, terminal.width(), paint_data):
        show(line)


@command.command(name="show", cls=Command, examples=[("stoker workspace show", "the one in use")])
@click.argument("name", required=False, default="")
@json_option()
def show_one(name: str, as_json: bool) -> None:
    """Show a workspace: its accounts, its store and how to log in. Without a name, the one in use."""
    workspaces = Workspaces(from_environment())
    wanted = name or workspaces.in_use
    if not wanted:
        raise NotFound("no workspace is in use", hint="stoker workspace use FILE")
    found = workspaces.read(wanted)
    if as_json:
        show_json({"workspace": found, "in_use": found.name == workspaces.in_use})
        return
    show(found.name)
    for line in pairs(_facts(found), paint_data):
        show(line)


def _agreed(strange: list[Place]) -> bool:
    say("the file names hosts or folders that are not the provider's own:")
    for line in pairs([(one.field, one.where) for one in strange], terminal.paint):
        say(line)
    return terminal.ask("does your administrator say that your login and your data may go there?")


def _facts(found: Handover) -> list[tuple[str, str]]:
    accounts = [
        (f"{provider} {word}", ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value))
        for provider, account in found.accounts.items()
        for word, value in account.items()
    ]
    store = f"{found.store.name}, {found.store.url}, opened with {found.store.credential}" if found.store else ""
    return [*accounts, ("store", store), ("log in", "\n".join(found.login))]


def _tell(joined: Joined) -> None:
    found = joined.handover
    if not joined.works:
        for line in store.lines(joined.findings):
            show(line)
        say(f"the store of {found.name} does not work with this login, so nothing was changed")
        for line in found.login:
            say(f"hint: {line}")
        if found.admission:
            say(f"hint: or ask your administrator to run: {found.admission}")
        return
    for one in joined.kept:
        say(f"what was there before is now {one}")
    on = ", ".join(found.accounts)
    where = f", and new runs are kept in {found.store.url}" if found.store and found.store.default else ""
    say(f"the workspace {found.name} is in use: jobs run on {on}{where}")
    if found.accounts:
        say(f"hint: stoker run --on {next(iter(found.accounts))}")
