"""What the nodes of a gang tell each other through the store. Each is written by one node, and read by its peers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from stoker.model.node.orders import Notice
from stoker.model.run.report import Outcome
from stoker.model.untrusted import Most, Within

Address = Annotated[str, Most(100)]
Port = Annotated[int, Within(0, 65_535)]


@dataclass(frozen=True, slots=True)
class SavedSet:
    """A checkpoint that a node could restore."""

    attempt: int
    number: int
    saves: Mapping[str, int] = field(default_factory=dict)  # see `CheckpointSet`

    @property
    def position(self) -> tuple[int, int]:
        return self.attempt, self.number


@dataclass(frozen=True, slots=True)
class Ready:
    """A node has its environment, its data and its checkpoint, and could start its ranks."""

    node: int
    round: int  # one more each time that nodes restore another checkpoint
    processes: int
    addresses: Annotated[tuple[Address, ...], Most(100)] = ()  # of the first node; of a peer, those that reach it
    port: Port = 0  # that it listens at, until others have tried to reach it
    resumes: bool = False  # it has restored a checkpoint
    label: float | None = None  # of that, by which it belongs to those of other nodes; None: nothing tells
    own: Annotated[tuple[Address, ...], Most(100)] = ()  # of this node
    free: Annotated[tuple[Port, ...], Most(1024)] = ()  # a free port for each of its ranks
    code: Annotated[str, Most(100)] = ""  # the snapshot that it has unpacked
    restored: SavedSet | None = None
    sets: Annotated[tuple[SavedSet, ...], Most(100)] = ()  # that it could restore, newest first


@dataclass(frozen=True, slots=True)
class Go:
    """What the first node says once it has heard of all: start, restore another checkpoint first, or why neither."""

    round: int
    port: Port = 0  # at which the ranks meet
    address: Address = ""  # of the first node, as its own ranks name it
    restore: bool = False  # another checkpoint first
    label: float | None = None  # none is restored that has a later one; None: none is at all
    trouble: Annotated[str, Most(4000)] = ""
    hint: Annotated[str, Most(4000)] = ""
    sets: Annotated[tuple[SavedSet, ...], Most(1024)] = ()  # by node: what it restores; empty: the label says
    workers: Annotated[tuple[Address, ...], Most(65_536)] = ()  # `address:port` for each rank; empty: not all are known
    secret: Annotated[str, Most(100)] = field(default="", repr=False)  # which proves that a caller is of this attempt


@dataclass(frozen=True, slots=True)
class PeerEnd:
    """A node has ended, and its peers cannot continue without it."""

    node: int
    outcome: Outcome
    message: Annotated[str, Most(4000)] = ""


@dataclass(frozen=True, slots=True)
class PeerNotice:
    """The machine of a node was given notice; None: the notice was withdrawn."""

    node: int
    notice: Notice | None = None
