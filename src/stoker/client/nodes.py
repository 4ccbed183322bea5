"""The nodes that are there, as the providers see them: what runs use, and what is left."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from urllib.parse import quote

from stoker.client.connection import Connection
from stoker.model import wire

_LOOK_S = 120.0  # a cloud takes its time


@dataclass(frozen=True, slots=True)
class Node:
    """`claimed` says that a run still needs it. `run` is the id of the one that it was for. `server` is the id of
    another server, whose it is; `expired` says that its lease is over."""

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
    run_name: str = ""  # of the run that claims it
    kept_until: datetime | None = None  # it is kept after that run's failure
    spent_usd: Decimal | None = None  # what it has cost so far; None: that is not known


@dataclass(frozen=True, slots=True)
class Unseen:
    """A provider that could not be asked: nobody knows what is left there."""

    provider: str
    reason: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Troubled:
    """A run of which nobody knows how it is. Its nodes are claimed, and may cost without being of any use."""

    run: str
    id: str
    reason: str
    keys: tuple[str, ...] = ()
    usd_per_hour: Decimal = Decimal(0)


@dataclass(frozen=True, slots=True)
class Look:
    """What there is, and what could not be looked at."""

    nodes: tuple[Node, ...] = ()
    unseen: tuple[Unseen, ...] = ()
    troubled: tuple[Troubled, ...] = ()

    @property
    def whole(self) -> bool:
        return not self.unseen and not self.troubled


class Nodes:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def look(self, provider: str = "") -> Look:
        """Of all providers, or of one."""
        query = {"provider": provider} if provider else {}
        return wire.from_plain(Look, self._connection.get("/v1/nodes", query, timeout_s=_LOOK_S))

    def all(self) -> list[Node]:
        """Of the providers that could be asked."""
        return list(self.look().nodes)

    def release(self, node: Node) -> None:
        """Only one that no run claims, or one of another server whose lease is over; twice is fine."""
        others = "?others=true" if node.server else ""
        self._connection.delete(f"/v1/nodes/{quote(node.key, safe='')}{others}")
