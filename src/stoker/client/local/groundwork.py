"""Finds the set-up code of a provider, by entry point, and the twin to rehearse it on."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from stoker.client.settings import ClientSettings
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
    raise NotFound(f"provider `{name}` requires no set-up", hint=f"supported: {', '.join(names())}")


def forms() -> dict[str, AccountForm]:
    """The fields of an account in a hand-over file, by provider."""
    return {name: find(name).form for name in names()}


def rehearse(settings: ClientSettings, say: Callable[[str], None]) -> dict[str, Any]:
    """The twin's address and login: it is up, and so is its Blob service."""
    from stoker.client.local import (
        rehearsal,
        twin,  # needed only for a rehearsal
    )

    told, _ = twin.up(settings, twin.TwinOptions(blob=True))
    rehearsal.blob(told, settings, say)
    return told


def check_writable(path: Path, workspace: str) -> None:
    """Before anything is created: a file that is not a hand-over of this workspace is not overwritten."""
    if not path.parent.is_dir():
        raise BadInput(f"folder {path.parent} not found", hint=f"mkdir -p {path.parent}")
    if not path.exists():
        return
    try:
        known = read_handover(path.read_text(encoding="utf-8"), str(path), forms()).name
    except (BadInput, OSError, ValueError):
        known = ""
    if known != workspace:
        what = f"it belongs to workspace {known}" if known else "it is not a hand-over file"
        raise BadInput(f"{path} exists, and {what}", hint="choose another file with --out")


def write(handover: Handover, path: Path) -> bool:
    """Written atomically. False: it existed, with the same content."""
    text = handover.to_text()
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return False
    write_whole(path, text)
    return True
