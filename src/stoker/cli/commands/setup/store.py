"""`stoker store`: where runs and data are kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from stoker.cli.command import Command, Group, json_option
from stoker.cli.commands.setup.secret import credential
from stoker.cli.view import terminal
from stoker.cli.view.tables import Cell, Column, table
from stoker.cli.view.terminal import paint_data, say, show, show_json
from stoker.client.api.client import Client
from stoker.client.api.stores import Added, Stores, credential_forms
from stoker.errors import BadInput
from stoker.model.workspace.finding import Verdict
from stoker.model.workspace.store import StoreFinding, works

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

_COLUMNS = (
    Column("STORE", least=8),
    Column("NEW RUNS"),
    Column("OPENED WITH"),
    Column("WHERE", least=20),
)


@click.group(
    cls=Group,
    examples=[
        ("stoker store add blob az://ACCOUNT/CONTAINER", "add a container; asks for its key or SAS"),
        ("stoker store check blob", "what works and what does not"),
        ("stoker store use blob", "keep new runs there"),
    ],
)
def command() -> None:
    """Say where runs and data are kept: a folder, Azure Blob or S3.

    The store `folder` is always there, and new runs are kept in it until you choose another one.
    """


def _credential_options(function: Decorated) -> Decorated:
    """A flag for each credential that an installed kind of store takes."""
    for form in reversed(credential_forms()):
        if form.flag:
            function = click.option(form.flag, "kind", flag_value=form.name, help=form.help)(function)
    return function


@command.command(
    cls=Command,
    examples=[
        ("stoker store add blob az://ACCOUNT/CONTAINER", "asks for the key, SAS or connection string"),
        ("stoker store add blob az://ACCOUNT/CONTAINER --login", "with your Azure login"),
        ("stoker store add lake s3://BUCKET --from-env LAKE_KEY", "reads ID:SECRET from a variable"),
        ("stoker store add nas file:///mnt/nas/stoker --use", "a folder, and keep new runs there"),
    ],
)
@click.argument("name")
@click.argument("url")
@_credential_options
@click.option("--login", "kind", flag_value="login", help="It is opened with your login, or that of this machine.")
@click.option("--anonymous", "kind", flag_value="none", help="It is opened with nothing: it is public, or a folder.")
@click.option("--from-env", "variable", default="", metavar="VAR", help="Read the secret from this variable.")
@click.option("--use", is_flag=True, help="Keep new runs there.")
@click.option("--no-check", is_flag=True, help="Add it even if it does not work now.")
@click.option(
    "--shared-with-nodes",
    "shared",
    is_flag=True,
    default=None,
    help="Give nodes on other machines a credential that cannot be split: each can change every run in the store.",
)
@json_option()
def add(
    name: str,
    url: str,
    kind: str | None,
    variable: str,
    use: bool,
    no_check: bool,
    shared: bool | None,
    as_json: bool,
) -> int:
    """Add a store, after trying whether it works.

    The secret is asked for, or read from stdin, or from a variable: it is no argument, because everybody on this
    computer can read those. It goes into the system's keyring, or into a file that only you can read. The same name
    and URL again replace it.
    """
    client = Client.connect()
    given = credential(url, kind or "", variable, client.settings.environ)
    added = Stores(client.connection).add(name, url, *given, check=not no_check, use=use, shared=shared)
    if as_json:
        show_json({"added": added.store is not None, "store": added.store, "findings": added.findings})
    else:
        _tell(added)
    return 0 if added.store else 1


@command.command(cls=Command, examples=[("stoker store ls", "every store, and the one of new runs")])
@json_option()
def ls(as_json: bool) -> None:
    """List stores."""
    stores = Stores(Client.connect().connection).all()
    if as_json:
        show_json({"stores": stores})
        return
    rows = [
        [
            one.name,
            Cell("yes", "good") if one.workspace else "",
            "" if one.credential == "none" else one.credential.replace("-", " "),
            one.url,
        ]
        for one in stores
    ]
    for line in table(_COLUMNS, rows, terminal.width(), paint_data):
        show(line)


@command.command(cls=Command, examples=[("stoker store check blob", "reach, read, write, clock and more")])
@click.argument("name", required=False, default="")
@json_option()
def check(name: str, as_json: bool) -> int:
    """Try a store for everything Stoker asks of one.

    Says in words what works, what does not, and what to do. Without a name it tries the store of new runs. Nothing
    stays behind. The exit code is 1 where something fails.
    """
    stores = Stores(Client.connect().connection)
    name = name or next(one.name for one in stores.all() if one.workspace)
    findings = stores.check(name)
    if as_json:
        show_json({"store": name, "ok": works(findings), "findings": findings})
    else:
        for line in lines(findings):
            show(line)
    return 0 if works(findings) else 1


@command.command(cls=Command, examples=[("stoker store use blob", "keep new runs in blob")])
@click.argument("name")
@json_option()
def use(name: str, as_json: bool) -> None:
    """Keep new runs in this store.

    Runs that exist stay where they are, and are found there.
    """
    store = Stores(Client.connect().connection).use(name)
    if as_json:
        show_json({"store": store})
    else:
        say(f"new runs are kept in {store.name} ({store.url})")


@command.command(cls=Command, examples=[("stoker store rm blob", "forget it and its credential")])
@click.argument("name")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@json_option()
def rm(name: str, yes: bool, as_json: bool) -> int:
    """Forget a store and its credential. What lies in it stays."""
    question = f"forget the store {name} and its credential?"
    if not terminal.confirmed(question, yes=yes, as_json=as_json):
        return 1
    Stores(Client.connect().connection).remove(name)
    if as_json:
        show_json({"removed": name})
    else:
        say(f"forgot {name}; what lies in it is still there")
    return 0


def _tell(added: Added) -> None:
    for line in lines(added.findings):
        show(line)
    if added.store is None:
        raise BadInput("the store was not added, because it does not work", hint="--no-check adds it all the same")
    say(f"added {added.store.name}" + ("; new runs are kept there" if added.store.workspace else ""))


# What a look at a store found, line by line.

_STYLES = {Verdict.OK: "good", Verdict.WARN: "warn", Verdict.FAIL: "error", Verdict.SKIP: "faint"}


def lines(findings: Sequence[StoreFinding]) -> list[str]:
    widest = max((len(one.name) for one in findings), default=0)
    return [_line(one, widest) for one in findings]


def _line(one: StoreFinding, widest: int) -> str:
    advice = f"\n      {' ' * widest}  → {one.advice}" if one.advice else ""
    return f"{paint_data(f'{one.verdict:<4}', _STYLES[one.verdict])}  {one.name:<{widest}}  {one.found}{advice}"
