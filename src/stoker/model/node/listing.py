"""The nodes that exist, as the providers report them: what runs use, what is left over, and what is unknown."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal


@dataclass(frozen=True, slots=True)
class ListedNode:
    """`claimed` says that a run still needs it. `run` is the id of the run it was started for. `server` is the id of
    another server, if the node belongs to that one; `expired` says that its lease is over."""

    provider: str
    key: str
    run: str
    state: str
    reason: str
    claimed: bool
    resources: tuple[str, ...] = ()
    usd_per_hour: Decimal = Decimal(0)
    server: str = ""
    lease_until: datetime | None = None
    expired: bool = False
    stuck: str = ""  # why it could not be released, with what to do
    run_name: str = ""  # of the run that needs it
    kept_until: datetime | None = None  # set if it is kept after that run's failure
    spent_usd: Decimal | None = None  # what it has cost so far; None: unknown


@dataclass(frozen=True, slots=True)
class Unseen:
    """A provider that did not answer: what is left there is unknown."""

    provider: str
    reason: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Troubled:
    """A run whose state is unknown: its nodes are claimed, and may cost money without being of use."""

    run: str
    id: str
    reason: str
    keys: tuple[str, ...] = ()
    usd_per_hour: Decimal = Decimal(0)


@dataclass(frozen=True, slots=True)
class NodeListing:
    """`unseen` and `troubled` say what the list of nodes may lack."""

    nodes: tuple[ListedNode, ...] = ()
    unseen: tuple[Unseen, ...] = ()
    troubled: tuple[Troubled, ...] = ()

    @property
    def whole(self) -> bool:
        return not self.unseen and not self.troubled
