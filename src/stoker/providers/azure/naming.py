"""What things of ours are called in Azure, and how they are known again: names and tags. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

WORKSPACE, SERVER, KEY, LEASE = "stoker-workspace", "stoker-server", "stoker-node", "stoker-lease"
MACHINE = "stoker-machine"  # the key that the group was made for; the node in it may be a later one
_LABELS = {"run": "stoker-run", "owner": "stoker-owner"}
_FORM = "%Y-%m-%dT%H:%M:%SZ"
_LONGEST = 256  # of a tag's value
_KEPT = re.compile(r"[^a-z0-9-]+")


@dataclass(frozen=True, slots=True)
class Marks:
    """What the tags of a group say. Empty: nothing."""

    key: str
    machine: str
    server: str = ""
    owner: str = ""
    lease_until: datetime | None = None


def group_name(workspace: str, key: str) -> str:
    """One group owns everything of a node, so that deleting it deletes all. At most 90 characters."""
    name = f"stoker-{_KEPT.sub('-', workspace.lower())}-{_KEPT.sub('-', key.lower())}"
    if len(name) <= 80 and key == key.lower() and not _KEPT.search(key):
        return name
    return f"{name[:60]}-{hashlib.sha256(f'{workspace}/{key}'.encode()).hexdigest()[:12]}"


def group_id(subscription: str, group: str) -> str:
    return f"/subscriptions/{subscription}/resourceGroups/{group}"


def tags(workspace: str, server: str, key: str, labels: Mapping[str, str]) -> dict[str, str]:
    """What never changes while a node is there, and so may be on everything of it."""
    named = {tag: labels.get(word, "")[:_LONGEST] for word, tag in _LABELS.items()}
    return {WORKSPACE: workspace, SERVER: server, KEY: key, MACHINE: key, **{k: v for k, v in named.items() if v}}


def lease_tag(until: datetime) -> dict[str, str]:
    return {LEASE: until.astimezone(UTC).strftime(_FORM)}


def marks(found: Mapping[str, str] | None, workspace: str) -> Marks | None:
    """None where the tags are not ours, or of another workspace."""
    if not found or found.get(WORKSPACE) != workspace or not found.get(KEY):
        return None
    key = found[KEY]
    owner, until = found.get(_LABELS["owner"], ""), _moment(found.get(LEASE, ""))
    return Marks(key, found.get(MACHINE, key), found.get(SERVER, ""), owner, until)


def _moment(text: str) -> datetime | None:
    """None where nobody could have written it: a lease that cannot be read is none."""
    try:
        return datetime.strptime(text, _FORM).replace(tzinfo=UTC)
    except ValueError:
        return None
