"""What things of ours are called in Azure, and how they are known again: names and tags. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from datetime import UTC, datetime

WORKSPACE, KEY, LEASE = "stoker-workspace", "stoker-node", "stoker-lease"
_KEPT = re.compile(r"[^a-z0-9-]+")


def group_name(workspace: str, key: str) -> str:
    """One group owns everything of a node, so that deleting it deletes all. At most 90 characters."""
    name = f"stoker-{_KEPT.sub('-', workspace.lower())}-{_KEPT.sub('-', key.lower())}"
    if len(name) <= 80 and key == key.lower() and not _KEPT.search(key):
        return name
    return f"{name[:60]}-{hashlib.sha256(f'{workspace}/{key}'.encode()).hexdigest()[:12]}"


def group_id(subscription: str, group: str) -> str:
    return f"/subscriptions/{subscription}/resourceGroups/{group}"


def tags(workspace: str, key: str, lease_until: datetime | None) -> dict[str, str]:
    given = {WORKSPACE: workspace, KEY: key}
    return given | ({LEASE: lease_until.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")} if lease_until else {})


def key_of(found: Mapping[str, str] | None, workspace: str) -> str | None:
    """The node's key where the tags are ours and of this workspace."""
    if not found or found.get(WORKSPACE) != workspace:
        return None
    return found.get(KEY)
