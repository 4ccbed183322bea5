"""`stoker server`, `completion`, `schema` and `uninstall`: Stoker on this computer."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import click
from click.shell_completion import get_completion_class

from stoker.cli.command import Command, Group, json_option
from stoker.cli.view import terminal, words
from stoker.cli.view.terminal import say, show, show_json
from stoker.client.api.client import Client
from stoker.client.api.resources import Nodes, Stores
from stoker.client.local import footprint, launch, twin
from stoker.client.local.footprint import FootprintPart
from stoker.client.settings import ClientSettings, from_environment
from stoker.errors import BadInput, Conflict, ServerUnavailable
from stoker.model.cause import Cause
from stoker.model.job.job import schema
from stoker.model.node import ListedNode, NodeListing
from stoker.model.workspace.store import FOLDER, is_twin


@click.group(
    cls=Group,
    examples=[
        ("stoker server status", "show its address and uptime"),
        ("stoker server stop", "stop it; runs continue, and the next command starts it again"),
        ("stoker server start --port 8080", "also listen on a port for other programs, with the token"),
    ],
)
def server() -> None:
    """Start, stop or inspect this computer's server.

    Commands start it when they need it, and runs continue without it: you can stop it at any time.
    """


@server.command()
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help="Also listen on this port of 127.0.0.1, for programs that cannot use its Unix socket; 0: any free port.",
)
@json_option()
def start(port: int | None, as_json: bool) -> None:
    """Start the server, unless it is running.

    It listens on a Unix socket in Stoker's folder, which no other user of this computer can reach. Started with this
    command, it keeps your shell's CUDA_VISIBLE_DEVICES and the like for runs whose own shell sets none.
    """
    settings = replace(from_environment(), by_hand=True)
    if port is not None:
        settings = settings.with_variable("STOKER_PORT", str(port))
    launch.connect(settings).get("/v1/health")
    facts = launch.status(settings)
    if facts and port is not None and not facts["http"].endswith(f":{port}" if port else facts["http"] or "none"):
        found = f"on {facts['http']}" if facts["http"] else "on no port"
        raise Conflict(
            f"the server is already running and listens {found}", hint="stoker server stop", cause=Cause.ALREADY_RUNNING
        )
    _tell_server(facts, as_json)


@server.command()
@json_option()
def stop(as_json: bool) -> None:
    """Stop the server. Runs continue, and the server catches up with them when it starts again."""
    stopped = launch.stop(from_environment())
    if as_json:
        show_json({"stopped": stopped})
    else:
        say("stopped the server; runs continue" if stopped else "the server was not running")


@server.command()
@json_option()
def status(as_json: bool) -> int:
    """Show whether the server is running. The exit code is 1 if it is not."""
    facts = launch.status(from_environment())
    if facts is None and not as_json:
        say("the server is not running; commands start it when they need it")
        return 1
    _tell_server(facts, as_json)
    return 0 if facts else 1


def _tell_server(facts: dict[str, Any] | None, as_json: bool) -> None:
    if as_json:
        show_json({"up": facts is not None, "server": facts})
        return
    if facts is None:
        raise ServerUnavailable("the server stopped right after its start", hint="stoker doctor")
    since = words.age(datetime.fromisoformat(facts["started_at"]), datetime.now(UTC))
    where = " and ".join(place for place in (facts["url"], facts["http"]) if place)
    show(f"up for {since} at {where} (version {facts['version']}, process {facts['pid']}, home {facts['home']})")
    for notice in facts["notices"]:
        show(notice)


@click.command(
    cls=Command,
    examples=[
        ('eval "$(stoker completion bash)"', "in ~/.bashrc"),
        ('eval "$(stoker completion zsh)"', "in ~/.zshrc"),
        ("stoker completion fish | source", "in ~/.config/fish/config.fish"),
    ],
)
@click.argument("shell", metavar="bash|zsh|fish", type=click.Choice(["bash", "zsh", "fish"]))
@json_option()
def completion(shell: str, as_json: bool) -> None:
    """Print the shell completion script.

    Names of runs are completed, too, while the server is running.
    """
    from stoker.cli import cli  # the group that loads this module

    kind = get_completion_class(shell)
    assert kind is not None  # click supports all three
    script = kind(cli, {}, "stoker", "_STOKER_COMPLETE").source()
    if as_json:
        show_json({"shell": shell, "script": script})
    else:
        show(script)


@click.command(
    cls=Command,
    examples=[
        ("stoker schema > stoker.schema.json", "write it to a file"),
        ("# yaml-language-server: $schema=stoker.schema.json", "line 1 of stoker.yaml"),
    ],
)
@json_option()
def job_schema(as_json: bool) -> None:  # noqa: ARG001  # it is JSON either way
    """Print the JSON Schema of the job file, for editors.

    With it, an editor completes and explains the fields of stoker.yaml, and marks mistakes as you type.
    """
    show(json.dumps(schema(), indent=2, ensure_ascii=False))


_MOST = 1000
_GOES_S = 10.0
_PROGRAM = "pip uninstall stoker"


@dataclass(frozen=True, slots=True)
class _Found:
    """What is installed. `stays` is what is not on this computer, or not Stoker's."""

    parts: list[FootprintPart]
    processes: list[str]
    mounts: list[str]
    stays: list[str]


@click.command(
    cls=Command,
    examples=[
        ("stoker uninstall", "list what would be removed, and ask"),
        ("stoker uninstall --json", "list it for a program; remove nothing"),
    ],
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--force", is_flag=True, help="Also if a cloud cannot be checked for leftover machines.")
@json_option()
def uninstall(yes: bool, force: bool, as_json: bool) -> int:
    """List and remove what Stoker has left on this computer.

    That is Stoker's folder with all runs, datasets and environments, the server, the twin with Azurite, and credentials
    of stores. Outputs in your own folders stay, and so does the content of remote stores. The command refuses while a
    run is active, or while a machine of Stoker exists in a cloud: list and remove those with `stoker cleanup`.
    """
    settings = from_environment()
    if not settings.local:
        raise BadInput(
            "STOKER_SERVER names a remote server",
            hint="unset STOKER_SERVER to uninstall from this computer",
            cause=Cause.ELSEWHERE,
        )
    if not footprint.is_home(settings) or not footprint.parts(settings):
        return _nothing(settings, as_json)
    stays = _checked(settings, force=force) if settings.home.database.exists() else []
    stays += footprint.stays(settings)
    found = _Found(footprint.parts(settings), _processes(settings), footprint.mounts(settings), stays)
    if as_json and not yes:
        show_json(_plain(settings, found) | {"removed": False})
        return 0
    if not as_json:
        _tell(settings, found)
    size = words.size_text(sum(part.size_bytes for part in found.parts))
    if not terminal.confirmed(f"permanently delete all of this ({size})?", yes=yes):
        return 1
    failed = _remove(settings)
    if as_json:
        show_json(_plain(settings, found) | {"removed": not failed, "failed": failed})
    elif failed:
        for line in failed:
            say(f"not removed: {line}")
    else:
        say(f"removed; remove the program itself with `{_PROGRAM}`")
    return 1 if failed else 0


def _nothing(settings: ClientSettings, as_json: bool) -> int:
    if as_json:
        show_json(_plain(settings, _Found([], [], [], [])) | {"removed": False})
    else:
        say(f"Stoker has no files in {settings.home.root}; remove the program itself with `{_PROGRAM}`")
    return 0


def _checked(settings: ClientSettings, *, force: bool) -> list[str]:
    """What stays elsewhere. Raises Conflict if something is running, or may be."""
    client = Client.connect(settings)
    if active := client.runs(limit=_MOST, state="active"):
        one = active[0]
        what = f"`{one.name}` is {one.state}" + (
            f", and {len(active) - 1} more runs are active" if len(active) > 1 else ""
        )
        raise Conflict(what, hint=f"cancel it first: `stoker cancel {one.name}`", cause=Cause.RUN_ACTIVE)
    look = _look(Nodes(client.connection))
    if machines := _ours(look):
        first = machines[0]
        count = f"{words.count(len(machines), 'machine')} of Stoker still {'exists' if len(machines) == 1 else 'exist'}"
        release = f"stoker release {first.run_name}" if first.kept_until else "stoker cleanup"
        raise Conflict(f"{count} on {first.provider}", hint=f"remove it first: `{release}`", cause=Cause.MACHINES_LEFT)
    unseen = [one for one in look.unseen if not is_twin(one.provider)]
    if unseen and not force:
        reason = f"cannot check {unseen[0].provider} for leftover machines: {unseen[0].reason}"
        raise Conflict(reason, hint=unseen[0].hint or "add `--force` if you are sure that none is left")
    elsewhere = [one for one in Stores(client.connection).all() if one.name != FOLDER and one.name != "twin"]
    return [f"the store `{one.name}`, {one.url}, with everything in it" for one in elsewhere]


def _look(nodes: Nodes) -> NodeListing:
    """The nodes that exist. A node whose run has just ended gets a moment to disappear."""
    give_up = time.monotonic() + _GOES_S
    while True:
        look = nodes.look()
        if not _ours(look) or any(one.kept_until for one in _ours(look)) or time.monotonic() > give_up:
            return look
        time.sleep(0.5)


def _ours(look: NodeListing) -> list[ListedNode]:
    """The twin's machines are removed with the twin."""
    return [one for one in look.nodes if not one.server and not is_twin(one.provider)]


def _processes(settings: ClientSettings) -> list[str]:
    server, cloud = launch.status(settings), twin.find(settings)
    found = [f"the server (pid {server['pid']})"] if server else []
    return [*found, f"the twin (pid {cloud['pid']})"] if cloud else found


def _tell(settings: ClientSettings, found: _Found) -> None:
    show(f"in {settings.home.root}:")
    for part in found.parts:
        show(f"  {words.size_text(part.size_bytes):>8}  {part.what}")
    for line in found.processes:
        show(f"running: {line}")
    for line in found.mounts:
        show(f"mounted: {line}")
    say("stays: outputs in your own folders, and your job files")
    for line in found.stays:
        say(f"stays: {line}")


def _plain(settings: ClientSettings, found: _Found) -> dict[str, object]:
    parts = [
        {"what": part.what, "bytes": part.size_bytes, "places": [str(place) for place in part.places]}
        for part in found.parts
    ]
    return {
        "home": str(settings.home.root),
        "parts": parts,
        "processes": found.processes,
        "mounts": found.mounts,
        "stays": found.stays,
    }


def _remove(settings: ClientSettings) -> list[str]:
    """The twin first: its machines use the server. Credentials next, while a server can list them."""
    twin.down(settings, forget=True)
    if settings.home.database.exists():
        Client.connect(settings).connection.post("/v1/credentials/forget")
    with launch.stopped(settings):
        return footprint.remove(settings)
