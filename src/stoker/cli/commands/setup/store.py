"""`stoker store`: where runs and data are stored.

The credential of a store is prompted for without echo, or read from a variable or stdin. It is never an argument, which
other users of the computer could see.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click

from stoker.cli.command import Command, Group, json_option
from stoker.cli.view import terminal
from stoker.cli.view.terminal import paint_data, say, show, show_json
from stoker.cli.view.words import Column, TableCell, table
from stoker.client.api.client import Client
from stoker.client.api.resources import Added, CredentialForm, Stores, credential_forms
from stoker.errors import BadInput
from stoker.model.workspace.store import CheckResult, StoreFinding, works

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

_COLUMNS = (
    Column("STORE", least=8),
    Column("NEW RUNS"),
    Column("CREDENTIAL"),
    Column("WHERE", least=20),
)


@click.group(
    cls=Group,
    examples=[
        ("stoker store add blob az://ACCOUNT/CONTAINER", "add a container; prompts for its key or SAS"),
        ("stoker store check blob", "test what works and what does not"),
        ("stoker store use blob", "use it for new runs"),
    ],
)
def command() -> None:
    """Manage stores for runs and data: folders, Azure Blob, S3, GCS.

    The store `folder` always exists; new runs use it until you choose another one.
    """


def _credential_options(function: Decorated) -> Decorated:
    """A flag for each credential that an installed kind of store supports."""
    for form in reversed(credential_forms()):
        if form.flag:
            function = click.option(form.flag, "kind", flag_value=form.name, help=form.help)(function)
    return function


@command.command(
    cls=Command,
    examples=[
        ("stoker store add blob az://ACCOUNT/CONTAINER", "prompts for the key, SAS or connection string"),
        ("stoker store add blob az://ACCOUNT/CONTAINER --login", "with your Azure login"),
        ("stoker store add lake s3://BUCKET --from-env LAKE_KEY", "reads ID:SECRET from a variable"),
        ("stoker store add nas file:///mnt/nas/stoker --use", "add a folder, and use it for new runs"),
    ],
)
@click.argument("name")
@click.argument("url")
@_credential_options
@click.option("--login", "kind", flag_value="login", help="Use your login, or that of this machine.")
@click.option("--anonymous", "kind", flag_value="none", help="Use no credential: it is public, or a folder.")
@click.option("--from-env", "variable", default="", metavar="VAR", help="Read the secret from this variable.")
@click.option("--use", is_flag=True, help="Use it for new runs.")
@click.option("--no-check", is_flag=True, help="Add it without testing it.")
@click.option(
    "--shared-with-nodes",
    "shared",
    is_flag=True,
    default=None,
    help="Give nodes on other machines a credential that cannot be restricted: each can change every run in the store.",
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
    """Add a store, after testing it.

    Prompts for the secret, or reads it from stdin or a variable; it is not passed as an argument, because other users
    could see it. It is saved in the system's keyring, or in a file that only you can read. Use the same name and URL
    again to replace it.
    """
    client = Client.connect()
    given = credential(url, kind or "", variable, client.settings.environ)
    added = Stores(client.connection).add(name, url, *given, check=not no_check, use=use, shared=shared)
    if as_json:
        show_json({"added": added.store is not None, "store": added.store, "findings": added.findings})
    else:
        _tell(added)
    return 0 if added.store else 1


@command.command(cls=Command, examples=[("stoker store ls", "list every store, and the one for new runs")])
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
            TableCell("yes", "good") if one.workspace else "",
            "" if one.credential == "none" else one.credential.replace("-", " "),
            one.url,
        ]
        for one in stores
    ]
    for line in table(_COLUMNS, rows, terminal.width(), paint_data):
        show(line)


@command.command(cls=Command, examples=[("stoker store check blob", "test access, reads, writes, clock and more")])
@click.argument("name", required=False, default="")
@json_option()
def check(name: str, as_json: bool) -> int:
    """Test everything that Stoker needs from a store.

    Prints what works, what does not, and what to do. Without a name it tests the store for new runs. Nothing is left
    behind. The exit code is 1 if something fails.
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


@command.command(cls=Command, examples=[("stoker store use blob", "use blob for new runs")])
@click.argument("name")
@json_option()
def use(name: str, as_json: bool) -> None:
    """Use this store for new runs.

    Existing runs stay in their store and are found there.
    """
    store = Stores(Client.connect().connection).use(name)
    if as_json:
        show_json({"store": store})
    else:
        say(f"new runs are stored in {store.name} ({store.url})")


@command.command(cls=Command, examples=[("stoker store rm blob", "remove it and its credential")])
@click.argument("name")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@json_option()
def rm(name: str, yes: bool, as_json: bool) -> int:
    """Remove a store and its credential from Stoker. Its content stays."""
    question = f"remove the store {name} and its credential? (its content stays)"
    if not terminal.confirmed(question, yes=yes, as_json=as_json):
        return 1
    Stores(Client.connect().connection).remove(name)
    if as_json:
        show_json({"removed": name})
    else:
        say(f"removed {name}; its content is still there")
    return 0


def _tell(added: Added) -> None:
    for line in lines(added.findings):
        show(line)
    if added.store is None:
        raise BadInput("the store was not added, because it does not work", hint="add it nevertheless with --no-check")
    say(f"added {added.store.name}" + ("; new runs are stored there" if added.store.workspace else ""))


# The findings of a store's test, line by line.

_STYLES = {CheckResult.OK: "good", CheckResult.WARN: "warn", CheckResult.FAIL: "error", CheckResult.SKIP: "faint"}


def lines(findings: Sequence[StoreFinding]) -> list[str]:
    widest = max((len(one.name) for one in findings), default=0)
    return [_line(one, widest) for one in findings]


def _line(one: StoreFinding, widest: int) -> str:
    advice = f"\n      {' ' * widest}  → {one.advice}" if one.advice else ""
    return f"{paint_data(f'{one.verdict:<4}', _STYLES[one.verdict])}  {one.name:<{widest}}  {one.found}{advice}"


def credential(url: str, kind: str, variable: str, environ: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """The kind and its values. Without a kind, it is recognised by its form."""
    forms = [form for form in credential_forms(url) if form.asked]
    chosen = [form for form in forms if not kind or form.name == kind]
    if not chosen:  # such as a login: no prompt; the server checks whether it fits
        return kind or "none", {}
    text = _text(_either([form.asked for form in chosen]), variable, environ)
    form = chosen[0] if kind else recognised(chosen, text)
    return form.name, dict(form.read(text))


def recognised(forms: Sequence[CredentialForm], text: str) -> CredentialForm:
    for form in forms:
        if form.recognise(text):
            return form
    asked = " nor ".join(form.asked for form in forms)
    raise BadInput(
        f"the input is neither {asked}", hint=f"say which it is with {_either([form.flag for form in forms])}"
    )


def _either(words: Sequence[str]) -> str:
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _text(what: str, variable: str, environ: Mapping[str, str]) -> str:
    if variable:
        if not environ.get(variable):
            raise BadInput(f"the variable {variable} is not set", hint=f"export {variable} first, then retry")
        return environ[variable].strip()
    if terminal.interactive():
        return terminal.ask_secret(what)
    text = sys.stdin.read().strip() if sys.stdin else ""
    if not text:
        raise BadInput(
            f"expected the {what} on stdin",
            hint="pipe it in, name a variable with --from-env, or use --login or --anonymous",
        )
    return text
