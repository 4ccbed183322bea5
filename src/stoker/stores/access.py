"""What opens a store, or a part of it for a limited time, and how a mount is started with it. Standard library only:
agents carry this file."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stoker.errors import BadInput


@dataclass(frozen=True, slots=True)
class Route:
    """Keys with the prefix `prefix` are at `url`, under the rest of their name; a prefix that does not end with `/` is
    the key of one object, at `url` itself. `token` is a SAS for Azure, JSON of temporary keys for S3, and empty for a
    folder."""

    prefix: str
    url: str
    token: str = field(default="", repr=False)
    writes: bool = False

    @property
    def one(self) -> str:
        """The name of its single object; empty where it is for a folder."""
        return self.prefix.rpartition("/")[2]

    def covers(self, key: str) -> bool:
        return key == self.prefix if self.one else key.startswith(self.prefix)


@dataclass(frozen=True, slots=True)
class Access:
    """`expires_at` is in unix seconds; 0 means never."""

    routes: tuple[Route, ...]
    expires_at: float = 0.0

    def route(self, key: str) -> Route | None:
        """The one with the longest prefix."""
        fitting = [route for route in self.routes if route.covers(key)]
        return max(fitting, key=lambda route: len(route.prefix), default=None)

    def to_text(self) -> str:
        """Contains the tokens: for a node's environment, or encrypted."""
        routes = [[route.prefix, route.url, route.token, route.writes] for route in self.routes]
        return json.dumps({"expires_at": self.expires_at, "routes": routes})

    @classmethod
    def from_text(cls, text: str) -> Access:
        try:
            found = json.loads(text)
            routes = tuple(Route(str(p), str(u), str(t), bool(w)) for p, u, t, w in found["routes"])
            return cls(routes, float(found["expires_at"]))
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            raise BadInput("this is not an access to a store") from None


NONE = "none"


@dataclass(frozen=True, slots=True)
class Credential:
    """`kind` is one of those of the store's kind: `kinds.check_credential` checks it. Neither its repr nor its messages
    show a value, so that it may appear in a traceback."""

    kind: str = NONE
    values: Mapping[str, str] = field(default_factory=dict, repr=False)

    def to_text(self) -> str:
        """For a keychain."""
        return json.dumps({"kind": self.kind, **self.values})

    @classmethod
    def from_text(cls, text: str) -> Credential:
        try:
            values = json.loads(text)
            kind = values.pop("kind")
            if not all(isinstance(value, str) for value in (kind, *values.values())):
                raise TypeError
        except (ValueError, KeyError, TypeError, AttributeError):
            raise BadInput("this is not a credential stored by Stoker", hint="stoker store add") from None
        return cls(kind, values)


NOTHING = Credential()


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
