"""What can be removed: nodes that no run needs, runs that are no longer wanted, and packages that no run uses."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from stoker.client.api.connection import Connection
from stoker.client.settings import ClientSettings
from stoker.model import wire
from stoker.model.node.listing import ListedNode, NodeListing
from stoker.model.run.pruning import PruneRule, RunSizes, Sizes, Spared
from stoker.model.run.run import Run
from stoker.stores.unused import remove_unused, unused

_LOOK_S = 120.0  # clouds respond slowly
_AT_ONCE = 500  # runs per request for sizes


class Nodes:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def look(self, provider: str = "") -> NodeListing:
        """Of all providers, or of one."""
        query = {"provider": provider} if provider else {}
        return wire.from_plain(NodeListing, self._connection.get("/v1/nodes", query, timeout_s=_LOOK_S))

    def all(self) -> list[ListedNode]:
        """Of the providers that could be queried."""
        return list(self.look().nodes)

    def release(self, node: ListedNode) -> None:
        """Only a node that no run needs, or one of another server whose lease has expired; may be repeated."""
        others = "?others=true" if node.server else ""
        self._connection.delete(f"/v1/nodes/{quote(node.key, safe='')}{others}")


@dataclass(frozen=True, slots=True)
class UnusedPackages:
    """Cached packages that no run has used for as long as a rule says."""

    folder: Path
    older_than_s: float
    size_bytes: int

    @classmethod
    def look(cls, settings: ClientSettings, rule: PruneRule) -> UnusedPackages:
        """None of them belongs to one experiment."""
        folder = settings.home.software
        found = {} if rule.experiment else unused(folder, rule.older_than_s, time.time())
        return cls(folder, rule.older_than_s, sum(found.values()))

    def remove(self) -> None:
        if self.size_bytes:
            remove_unused(self.folder, self.older_than_s, time.time())


def remove(connection: Connection, names: Sequence[str]) -> Mapping[str, str]:
    """All or none; returns those with files still stored, and why."""
    told = connection.post("/v1/removals", {"runs": list(names)}, repeat=False, timeout_s=_LOOK_S)
    return dict(told["pending"])


def sizes(connection: Connection, names: Sequence[str]) -> Sizes:
    """Many runs in several requests: each takes time in a store. Code shared between two requests counts twice."""
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
    """The rule by which the server deletes runs every day."""
    told = connection.get("/v1/prune-rule")["rule"]
    return wire.from_plain(PruneRule, told) if told else None


def set_prune_rule(connection: Connection, rule: PruneRule | None) -> None:
    connection.post("/v1/prune-rule", {"rule": wire.to_plain(rule) if rule else None})
