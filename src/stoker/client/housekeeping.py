"""What runs take up, which are too old, and removing them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stoker.client.connection import Connection
from stoker.client.settings import Settings
from stoker.model import wire
from stoker.model.pruning import PruneRule, Spared
from stoker.model.run import Run
from stoker.model.sizes import RunSizes, Sizes
from stoker.stores.unused import remove_unused, unused

_LOOK_S = 120.0  # stores far away take their time
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
