"""`stoker uninstall`: what Stoker has left on this computer, and its removal."""

from __future__ import annotations

import time
from dataclasses import dataclass

import click

from stoker.cli.command import Command, json_option
from stoker.cli.view import terminal, words
from stoker.cli.view.terminal import say, show, show_json
from stoker.client.api.client import Client
from stoker.client.api.leftovers import Nodes
from stoker.client.api.stores import Stores
from stoker.client.local import footprint, launch, twin
from stoker.client.local.footprint import FootprintPart
from stoker.client.settings import ClientSettings, from_environment
from stoker.errors import BadInput, Conflict
from stoker.model.node.listing import ListedNode, NodeListing
from stoker.model.workspace.store import FOLDER, is_twin

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
def command(yes: bool, force: bool, as_json: bool) -> int:
    """List and remove what Stoker has left on this computer.

    That is Stoker's folder with all runs, datasets and environments, the server, the twin with Azurite, and credentials
    of stores. Outputs in your own folders stay, and so does the content of remote stores. The command refuses while a
    run is active, or while a machine of Stoker exists in a cloud: list and remove those with `stoker cleanup`.
    """
    settings = from_environment()
    if not settings.local:
        raise BadInput(
            "STOKER_SERVER names a remote server", hint="unset STOKER_SERVER to uninstall from this computer"
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
    size = words.size(sum(part.size_bytes for part in found.parts))
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
        raise Conflict(what, hint=f"cancel it first: `stoker cancel {one.name}`")
    look = _look(Nodes(client.connection))
    if machines := _ours(look):
        first = machines[0]
        count = f"{words.count(len(machines), 'machine')} of Stoker still {'exists' if len(machines) == 1 else 'exist'}"
        release = f"stoker release {first.run_name}" if first.kept_until else "stoker cleanup"
        raise Conflict(f"{count} on {first.provider}", hint=f"remove it first: `{release}`")
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
        show(f"  {words.size(part.size_bytes):>8}  {part.what}")
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
