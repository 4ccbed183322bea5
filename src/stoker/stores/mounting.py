"""How to start a mount of a store: the program, its arguments and its environment. Pure; agents carry this file.

Tokens are passed in the environment, which only the same user can read, never on the command line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from stoker.stores.access import Route

READ_AHEAD = "64M"


@dataclass(frozen=True, slots=True)
class MountPlan:
    """How to start one mount program."""

    argv: tuple[str, ...]
    env: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class MountFolders:
    """The folders of one mount."""

    place: Path  # where it is mounted
    blocks: Path  # its cache of blocks
    socket: Path  # where rclone, which runs in its folder, reports how much it has read


@dataclass(frozen=True, slots=True)
class MountProgram:
    """`plan` gets the path of the program, what to mount, where, and the limit of its cache."""

    name: str
    plan: Callable[[str, Route, MountFolders, int], MountPlan]


def rclone(
    program: str, remote: str, settings: Mapping[str, str], folders: MountFolders, blocks_bytes: int
) -> MountPlan:
    """`remote` is a bucket and a path in it; `settings` are those of rclone's back end, by their upper-case names."""
    flags = {
        "config": "",
        "cache-dir": str(folders.blocks),
        "vfs-cache-mode": "full",
        "vfs-cache-max-size": f"{max(blocks_bytes >> 20, 64)}M",
        "vfs-cache-max-age": "9999h",
        "vfs-read-ahead": READ_AHEAD,
        "vfs-read-chunk-size": "16M",
        "vfs-read-chunk-streams": "4",  # a single connection is seldom as fast as the store
        "buffer-size": "0",  # the blocks on the disk are enough
        "dir-cache-time": "9999h",  # the files of a version never change
        "attr-timeout": "1h",
        "poll-interval": "0",
        "rc-addr": f"unix://{folders.socket.name}",
        "retries": "10",
        "low-level-retries": "20",
        "stats": "0",
    }
    words = [f"--{name}={value}" for name, value in flags.items()]
    words += ["--read-only", "--no-modtime", "--vfs-fast-fingerprint", "--rc", "--rc-no-auth"]
    named = {f"RCLONE_CONFIG_DATA_{name}": value for name, value in settings.items() if value}
    return MountPlan((program, "mount", f"data:{remote}".rstrip("/"), str(folders.place), *words), named)
