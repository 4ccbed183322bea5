"""Finding whoever lays the groundwork in a cloud: an entry point of the provider's. And the twin to rehearse it on."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from stoker.client.settings import Settings
from stoker.errors import BadInput, NotFound
from stoker.files.whole import write_whole
from stoker.model.workspace.accountform import AccountForm
from stoker.model.workspace.groundwork import Groundwork
from stoker.model.workspace.handover import Handover, read_handover

_GROUP = "stoker.groundworks"


def names() -> list[str]:
    """Providers that an administrator can set up."""
    return sorted(entry.name for entry in entry_points(group=_GROUP))


def find(name: str) -> Groundwork:
    for entry in entry_points(group=_GROUP, name=name):
        made: Groundwork = entry.load()()
        return made
    raise NotFound(f"the provider `{name}` has nothing to set up", hint=f"there are {', '.join(names())}")


def forms() -> dict[str, AccountForm]:
    """What a hand-over may say of an account, by provider."""
    return {name: find(name).form for name in names()}


def rehearse(settings: Settings, say: Callable[[str], None]) -> dict[str, Any]:
    """The twin's address and login: it is up, and so is its Blob service."""
    from stoker.client.local import (
        rehearsal,
        twin,  # who works in the cloud has no use for them
    )

    told, _ = twin.up(settings, twin.Wanted(blob=True))
    rehearsal.blob(told, settings, say)
    return told


def check_writable(path: Path, workspace: str) -> None:
    """Before anything is made: a file that is no hand-over of this workspace is not overwritten."""
    if not path.parent.is_dir():
        raise BadInput(f"there is no folder {path.parent}", hint=f"mkdir -p {path.parent}")
    if not path.exists():
        return
    try:
        known = read_handover(path.read_text(encoding="utf-8"), str(path), forms()).name
    except (BadInput, OSError, ValueError):
        known = ""
    if known != workspace:
        what = f"is of the workspace {known}" if known else "is something else"
        raise BadInput(f"{path} would be overwritten, and {what}", hint="name another file with --out")


def write(handover: Handover, path: Path) -> bool:
    """Whole or not at all. False: it was there, with the same words."""
    text = handover.to_text()
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return False
    write_whole(path, text)
    return True
