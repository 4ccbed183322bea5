"""Where there are no walls, a machine's own folders are below one of the host: every mention of them is moved.

Only folders that are a machine's alone are moved. What belongs to the operating system stays the host's.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import PurePosixPath
from typing import Any

_DRIVER = "/usr/local/sbin/nvidia-smi"  # a driver is installed in a machine, and never on the host
OWN = ("/etc/systemd/system", "/var/lib", "/var/log", "/run", "/root", "/srv", "/mnt", "/home", _DRIVER)
_METADATA = "http://169.254.169.254"
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


def rehomed(text: str, folders: tuple[str, ...], root: str, metadata: str) -> str:
    """Whole names alone: `/var/lib/x` is moved, `/var/library` and `/host/var/lib` are not."""
    names = "|".join(re.escape(folder) for folder in sorted(folders, key=len, reverse=True))
    text = text.replace(_METADATA, metadata)
    return re.sub(rf"(?<![\w./-])(?:{names})(?![\w-])", lambda found: root + found[0], text)


def rehomed_plan(plan: Mapping[str, Any], root: str, metadata: str) -> dict[str, Any]:
    move = partial(rehomed, folders=own_folders(plan), root=root, metadata=metadata)
    return {
        **plan,
        "bootcmd": move(plan["bootcmd"]),
        "scripts": {name: move(script) for name, script in plan["scripts"].items()},
        "files": [{**file, "content": _content(file["content"], move), "owner": ""} for file in plan["files"]],
    }


def _content(encoded: str, move: Callable[[str], str]) -> str:
    """Texts alone: a program or an archive is left as it is."""
    data = base64.b64decode(encoded)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return encoded
    return encoded if "\0" in text else base64.b64encode(move(text).encode()).decode()
