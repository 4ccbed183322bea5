"""The way to a node with OpenSSH's own client: which words it is started with. Pure."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from stoker.errors import BadInput
from stoker.model.entrance import Entrance

_FORWARD = re.compile(r"(?:(?P<bind>[\w.-]+):)?(?P<port>\d+):(?P<host>[\w.-]+):(?P<there>\d+)")
_LOOPBACK = ("localhost", "127.0.0.1")


@dataclass(frozen=True, slots=True)
class Forward:
    """`port` of this computer leads to `there` of `host`, as the node sees it."""

    port: int
    host: str
    there: int
    bind: str = ""

    def __str__(self) -> str:
        return f"{f'{self.bind}:' if self.bind else ''}{self.port}:{self.host}:{self.there}"

    @property
    def is_itself(self) -> bool:
        """On a node that is this computer: nothing has to be done."""
        return self.port == self.there and self.host in _LOOPBACK


def read_forward(text: str) -> Forward:
    found = _FORWARD.fullmatch(f"{text}:localhost:{text}" if text.isdigit() else text)
    if not found or not all(0 < int(found[name]) < 65536 for name in ("port", "there")):
        raise BadInput(f"-L: found `{text}`, expected PORT:HOST:PORT", hint="such as -L 6006:localhost:6006")
    return Forward(int(found["port"]), found["host"], int(found["there"]), found["bind"] or "")


@dataclass(frozen=True, slots=True)
class Call:
    """What is wanted on the node: a command, or a shell, or neither."""

    words: tuple[str, ...] = ()
    forwards: tuple[Forward, ...] = ()
    only_forward: bool = False
    terminal: bool = True
    identity: str = ""  # the file of a private key; empty: whatever ssh finds


def ssh_words(entrance: Entrance, key: str, call: Call, known_hosts: Path) -> list[str]:
    """Addresses are given to one machine after another, so each is known by its own key, and trusted at first sight."""
    options = [
        f"HostKeyAlias=stoker-{key}",
        f"UserKnownHostsFile={known_hosts}",
        "StrictHostKeyChecking=accept-new",
        "ServerAliveInterval=15",
        "ExitOnForwardFailure=yes",
    ]
    words = ["ssh", "-p", str(entrance.port), "-q"]
    words += [word for option in options for word in ("-o", option)]
    words += [word for one in call.forwards for word in ("-L", str(one))]
    words += ["-i", call.identity] if call.identity else []
    target = f"{entrance.user}@{entrance.address}"
    if call.only_forward:
        return [*words, "-N", target]
    return [*words, "-t" if call.terminal else "-T", target, shlex.join([*entrance.words, *call.words])]
