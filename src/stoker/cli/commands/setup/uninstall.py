"""`stoker uninstall`: what Stoker has left on this computer, and its removal."""

from __future__ import annotations

import time
from dataclasses import dataclass

import click

from stoker.cli.command import Command, json_option
from stoker.cli.view import terminal, words
from stoker.cli.view.terminal import say, show, show_json
from stoker.client.api.client import Client
from stoker.client.api.leftovers import Look, Node, Nodes
from stoker.client.api.stores import Stores
from stoker.client.local import footprint, launch, twin
from stoker.client.local.footprint import Part
from stoker.client.settings import Settings, from_environment
from stoker.errors import BadInput, Conflict
from stoker.model.workspace.store import FOLDER, is_twin

_MOST = 1000
_GOES_S = 10.0
_PROGRAM = "pip uninstall stoker"


@dataclass(frozen=True, slots=True)
class _Found:
    """What is there. `stays` is what is not on this computer, or not Stoker's."""

    parts: list[Part]
    processes: list[str]
    mounts: list[str]
    stays: list[str]


@click.command(
    cls=Command,
    examples=[
        ("stoker uninstall", "list what there is, and ask"),
        ("stoker uninstall --json", "for a program: the list, nothing is removed"),
    ],
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--force", is_flag=True, help="Also where a cloud cannot be asked what is left in it.")
@json_option()
def command(yes: bool, force: bool, as_json: bool) -> int:
    """List and remove what Stoker has left on this computer.

    That is Stoker's folder with all runs, datasets and environments in it, the server, the twin with Azurite, and
    credentials of stores. Outputs in your own folders stay, and so does what lies in stores elsewhere. It is refused
    while a run is under way, or a machine of ours exists in a cloud: `stoker cleanup` shows and removes those.
    """
    settings = from_environment()
    if not settings.local:
        raise BadInput("STOKER_SERVER names a server elsewhere", hint="unset STOKER_SERVER to mean this computer")
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
    if not terminal.confirmed(f"remove all of this ({size}) for good?", yes=yes):
        return 1
    failed = _remove(settings)
    if as_json:
        show_json(_plain(settings, found) | {"removed": not failed, "failed": failed})
    elif failed:
        for line in failed:
            say(f"not removed: {line}")
    else:
        say(f"removed; `{_PROGRAM}` removes the program itself")
    return 1 if failed else 0


def _nothing(settings: Settings, as_json: bool) -> int:
    if as_json:
        show_json(_plain(settings, _Found([], [], [], [])) | {"removed": False})
    else:
        say(f"there is nothing of Stoker in {settings.home.root}; `{_PROGRAM}` removes the program itself")
    return 0


def _checked(settings: Settings, *, force: bool) -> list[str]:
    """What stays elsewhere. Raises Conflict where something is running, or may be."""
    client = Client.connect(settings)
    if active := client.runs(limit=_MOST, state="active"):
        one = active[0]
        what = f"`{one.name}` is {one.state}" + (f", and {len(active) - 1} more runs" if len(active) > 1 else "")
        raise Conflict(what, hint=f"end it first: `stoker cancel {one.name}`")
    look = _look(Nodes(client.connection))
    if machines := _ours(look):
        first = machines[0]
        count = f"{words.count(len(machines), 'machine')} of ours {'exists' if len(machines) == 1 else 'exist'}"
        release = f"stoker release {first.run_name}" if first.kept_until else "stoker cleanup"
        raise Conflict(f"{count} on {first.provider}", hint=f"remove it first: `{release}`")
    unseen = [one for one in look.unseen if not is_twin(one.provider)]
    if unseen and not force:
        reason = f"{unseen[0].provider} cannot be asked what is left there: {unseen[0].reason}"
        raise Conflict(reason, hint=unseen[0].hint or "add `--force` if you are sure that nothing is")
    elsewhere = [one for one in Stores(client.connection).all() if one.name != FOLDER and one.name != "twin"]
    return [f"the store `{one.name}`, {one.url}, with everything in it" for one in elsewhere]


def _look(nodes: Nodes) -> Look:
    """What exists. A node whose run has just ended is given a moment to go."""
    give_up = time.monotonic() + _GOES_S
    while True:
        look = nodes.look()
        if not _ours(look) or any(one.kept_until for one in _ours(look)) or time.monotonic() > give_up:
            return look
        time.sleep(0.5)


def _ours(look: Look) -> list[Node]:
    """The twin's machines go with the twin."""
    return [one for one in look.nodes if not one.server and not is_twin(one.provider)]


def _processes(settings: Settings) -> list[str]:
    server, cloud = launch.status(settings), twin.find(settings)
    found = [f"the server (pid {server['pid']})"] if server else []
    return [*found, f"the twin (pid {cloud['pid']})"] if cloud else found


def _tell(settings: Settings, found: _Found) -> None:
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


def _plain(settings: Settings, found: _Found) -> dict[str, object]:
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


def _remove(settings: Settings) -> list[str]:
    """The twin first: its machines know the server. Credentials go while there is a server that can name them."""
    twin.down(settings, forget=True)
    if settings.home.database.exists():
        Client.connect(settings).connection.post("/v1/credentials/forget")
    with launch.stopped(settings):
        return footprint.remove(settings)
