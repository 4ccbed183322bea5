"""The nodes that are there, as the providers see them: what runs use, and what is left."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from urllib.parse import quote

from stoker.client.api.connection import Connection
from stoker.client.settings import Settings
from stoker.model import wire
from stoker.model.run.pruning import PruneRule, RunSizes, Sizes, Spared
from stoker.model.run.run import Run
from stoker.stores.unused import remove_unused, unused

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


# What runs take up, which are too old, and removing them.

_AT_ONCE = 500  # runs whose sizes are asked for


@dataclass(frozen=True, slots=True)
class UnusedPackages:
    """Lists and wheels of packages that no run has taken to a cloud for as long as a rule says."""

    folder: Path
    older_than_s: float
    size_bytes: int

    @classmethod
    def look(cls, settings: Settings, rule: PruneRule) -> UnusedPackages:
        """None of them belongs to one experiment."""
        folder = settings.home.software
        found = {} if rule.experiment else unused(folder, rule.older_than_s, time.time())
        return cls(folder, rule.older_than_s, sum(found.values()))

    def remove(self) -> None:
        if self.size_bytes:
            remove_unused(self.folder, self.older_than_s, time.time())


def remove(connection: Connection, names: Sequence[str]) -> Mapping[str, str]:
    """All or none; names those of which something is still stored, and why."""
    told = connection.post("/v1/removals", {"runs": list(names)}, repeat=False, timeout_s=_LOOK_S)
    return dict(told["pending"])


def sizes(connection: Connection, names: Sequence[str]) -> Sizes:
    """Of many runs piece by piece: each is one look at a store. Code that two pieces share counts twice then."""
    runs: dict[str, RunSizes] = {}
    total, home = 0, {}
    for start in range(0, max(len(names), 1), _AT_ONCE):
        asked = {"runs": list(names[start : start + _AT_ONCE])}
        found = wire.from_plain(Sizes, connection.post("/v1/sizes", asked, timeout_s=_LOOK_S))
        runs |= found.runs
        total, home = total + found.total, dict(found.home)
    return Sizes(runs, total, home)


def prunable(connection: Connection, rule: PruneRule) -> tuple[list[Run], list[Spared]]:
    told = connection.post("/v1/prunable", wire.to_plain(rule), timeout_s=_LOOK_S)
    runs = [wire.from_plain(Run, row) for row in told["runs"]]
    return runs, [wire.from_plain(Spared, row) for row in told["spared"]]


def prune_rule(connection: Connection) -> PruneRule | None:
    """By which the server removes runs by itself."""
    told = connection.get("/v1/prune-rule")["rule"]
    return wire.from_plain(PruneRule, told) if told else None


def set_prune_rule(connection: Connection, rule: PruneRule | None) -> None:
    connection.post("/v1/prune-rule", {"rule": wire.to_plain(rule) if rule else None})
