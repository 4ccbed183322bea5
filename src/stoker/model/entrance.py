"""How a person gets to a node, and what a shell needs to know to be where the script is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Entrance:
    """`words` run a command there, in the folder and with the variables of the run; without one, a shell."""

    words: tuple[str, ...]
    terminal: tuple[str, ...] = ()  # words that make the terminal of who runs them that of the script; empty: none do
    here: bool = False  # the node is on the server's own computer
    address: str = ""  # where its sshd listens, if it is not here
    user: str = ""
    port: int = 22


@dataclass(frozen=True, slots=True)
class Inside:
    """Lies as `inside.json` in a node's folder. The secrets of the run are not among the variables."""

    folder: str  # the script's
    env: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Said:
    """What a command has printed, all of it, and its exit code."""

    exit_code: int
    out: bytes = b""
    err: bytes = b""
