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


class Nodes:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def all(self) -> list[Node]:
        told = self._connection.get("/v1/nodes", timeout_s=_LOOK_S)
        return [wire.from_plain(Node, row) for row in told["nodes"]]

    def release(self, node: Node) -> None:
        """Only one that no run claims, or one of another server whose lease is over; twice is fine."""
        others = "?others=true" if node.server else ""
        self._connection.delete(f"/v1/nodes/{quote(node.key, safe='')}{others}")
