"""`stoker workspace`: the team's account and store, from the hand-over file of an administrator."""

from __future__ import annotations

import click

from stoker.cli.command import Command, Group, json_option
from stoker.cli.commands.setup import store
from stoker.cli.view import terminal
from stoker.cli.view.terminal import paint_data, say, show, show_json
from stoker.cli.view.words import Column, TableCell, pairs, table
from stoker.client.local.workspace import Joined, TrustedPlace, Workspaces
from stoker.client.settings import from_environment
from stoker.errors import NotFound
from stoker.model.cause import Cause
from stoker.model.workspace.handover import Handover

_COLUMNS = (Column("WORKSPACE", least=12), Column("IN USE"), Column("ON"), Column("STORE", least=20))


@click.group(
    cls=Group,
    examples=[
        ("stoker workspace use team.json", "from the file of your administrator"),
        ("stoker workspace ls", "list the workspaces of this computer"),
        ("stoker workspace use vision-team", "switch to one of them"),
    ],
)
def command() -> None:
    """Use your team's cloud and store, from one file.

    The file comes from your administrator, who created it with `stoker admin setup`, and contains no secret: log in
    yourself, as with `az login`.
    """


@command.command(
    cls=Command,
    examples=[
        ("stoker workspace use team.json", "set up this computer from a file"),
        ("stoker workspace use vision-team", "switch to a workspace of this computer"),
        ("stoker workspace use team.json --trust minio.lab:9000", "trust a store outside public clouds"),
    ],
)
@click.argument("file", metavar="FILE|NAME")
@click.option(
    "--trust", "trusted", multiple=True, metavar="PLACE", help="Trust this host or folder of the file; repeatable."
)
@json_option()
def use(file: str, trusted: tuple[str, ...], as_json: bool) -> int:
    """Use the workspace of a file, or one of this computer by name.

    New jobs run on its account, and new runs use its store. The store is tested first, with your own login: if it does
    not work, nothing changes, and the missing right is named.

    Your login, code and data go to the hosts in the file. Hosts that are not the cloud's own, and folders, are shown
    first and require your consent: at the prompt, or with --trust if there is none.
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


@command.command(cls=Command, examples=[("stoker workspace ls", "list them, and which is in use")])
@json_option()
def ls(as_json: bool) -> None:
    """List the workspaces of this computer."""
    workspaces = Workspaces(from_environment())
    known, used = workspaces.all(), workspaces.in_use
    if as_json:
        show_json({"workspaces": known, "in_use": used or None})
        return
    if not known:
        say("no workspaces; add one with `stoker workspace use FILE`, with the file of your administrator")
        return
    rows = [
        [
            one.name,
            TableCell("yes", "good") if one.name == used else "",
            ", ".join(one.accounts),
            one.store.url if one.store else "",
        ]
        for one in known
    ]
    for line in table(_COLUMNS, rows, terminal.width(), paint_data):
        show(line)


@command.command(name="show", cls=Command, examples=[("stoker workspace show", "show the one in use")])
@click.argument("name", required=False, default="")
@json_option()
def show_one(name: str, as_json: bool) -> None:
    """Show a workspace: its accounts, its store and how to log in. Without a name: the one in use."""
    workspaces = Workspaces(from_environment())
    wanted = name or workspaces.in_use
    if not wanted:
        raise NotFound("no workspace is in use", hint="stoker workspace use FILE", cause=Cause.NO_WORKSPACE)
    found = workspaces.read(wanted)
    if as_json:
        show_json({"workspace": found, "in_use": found.name == workspaces.in_use})
        return
    show(found.name)
    for line in pairs(_facts(found), paint_data):
        show(line)


def _agreed(strange: list[TrustedPlace]) -> bool:
    say("the file names hosts or folders that are not the provider's:")
    for line in pairs([(one.field, one.where) for one in strange], terminal.paint):
        say(line)
    return terminal.ask("has your administrator confirmed that your login and data may go there?")


def _facts(found: Handover) -> list[tuple[str, str]]:
    accounts = [
        (f"{provider} {word}", ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value))
        for provider, account in found.accounts.items()
        for word, value in account.items()
    ]
    store = f"{found.store.name}, {found.store.url}, credential {found.store.credential}" if found.store else ""
    return [*accounts, ("store", store), ("log in", "\n".join(found.login))]


def _tell(joined: Joined) -> None:
    found = joined.handover
    if not joined.works:
        for line in store.lines(joined.findings):
            show(line)
        say(f"nothing was changed: the store of {found.name} does not work with this login")
        for line in found.login:
            say(f"hint: {line}")
        if found.admission:
            say(f"hint: or ask your administrator to run: {found.admission}")
        return
    for one in joined.kept:
        say(f"renamed the previous one to {one}")
    on = ", ".join(found.accounts)
    where = f", and new runs are stored in {found.store.url}" if found.store and found.store.default else ""
    say(f"using workspace {found.name}: jobs run on {on}{where}")
    if found.accounts:
        say(f"hint: stoker run --on {next(iter(found.accounts))}")
