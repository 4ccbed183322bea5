"""How a person gets to a node, and what a shell needs to know to be where the script is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Entrance:
    """`address` is where its sshd listens; empty: the node is on the server's own computer."""

    folder: str  # the node's own, on its machine
    address: str = ""
    user: str = ""
    port: int = 22


@dataclass(frozen=True, slots=True)
class Inside:
    """Lies as `inside.json` in a node's folder. The secrets of the run are not among the variables."""

    folder: str  # the script's
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
