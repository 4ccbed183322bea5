"""Where there are no walls, a machine's own folders are below one of the host: every mention of them is moved.

Only folders that are a machine's alone are moved. What belongs to the operating system stays the host's.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

OWN = ("/etc/systemd/system", "/var/lib", "/var/log", "/run", "/root", "/srv", "/mnt", "/home")
_SYSTEM = (
    "/",
    "/etc",
    "/opt",
    "/usr",
    "/usr/bin",
    "/usr/sbin",
    "/usr/local",
    "/usr/local/bin",
    "/usr/local/sbin",
    "/tmp",
)


def own_folders(plan: Mapping[str, Any]) -> tuple[str, ...]:
    """Those of every machine, and where this one's plan writes files."""
    found = set(OWN)
    for file in plan["files"]:
        folder = str(PurePosixPath(file["path"]).parent)
        found.add(file["path"] if folder in _SYSTEM else folder)
    return tuple(sorted(found))


def rehomed(text: str, folders: tuple[str, ...], root: str) -> str:
    """Whole names alone: `/var/lib/x` is moved, `/var/library` and `/host/var/lib` are not."""
    names = "|".join(re.escape(folder) for folder in sorted(folders, key=len, reverse=True))
    return re.sub(rf"(?<![\w./-])(?:{names})(?![\w-])", lambda found: root + found[0], text)


def rehomed_plan(plan: Mapping[str, Any], root: str) -> dict[str, Any]:
    folders = own_folders(plan)
    files = [{**file, "content": _content(file["content"], folders, root), "owner": ""} for file in plan["files"]]
    return {
        **plan,
        "bootcmd": rehomed(plan["bootcmd"], folders, root),
        "scripts": {name: rehomed(script, folders, root) for name, script in plan["scripts"].items()},
        "files": files,
    }


def _content(encoded: str, folders: tuple[str, ...], root: str) -> str:
    """Texts alone: a program or an archive is left as it is."""
    data = base64.b64decode(encoded)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return encoded
    return encoded if "\0" in text else base64.b64encode(rehomed(text, folders, root).encode()).decode()
