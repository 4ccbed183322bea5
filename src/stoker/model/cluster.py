"""A cluster: a named pool of nodes, as its owner asked for it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal

from stoker.model.node.node import Pool

NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?")
MOST_NODES = 10_000
IDLE_S = 600.0


@dataclass(frozen=True, slots=True)
class Cluster:
    name: str
    provider: str
    max_nodes: int
    min_nodes: int = 0  # so many idle nodes are kept however long they wait
    idle_s: float = IDLE_S  # a node without a run is released after this
    size: str = ""  # the provider's name for one; empty: each job says what it needs
    region: str = ""  # empty: wherever the provider is set up for
    spot: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)  # the provider's own
    owner: str = ""  # who pays for idle nodes
    paused: bool = False  # it has no nodes, and nothing starts
    created_at: datetime | None = None

    @property
    def pool(self) -> Pool:
        return Pool(self.name, self.settings)


@dataclass(frozen=True, slots=True)
class ClusterState:
    """A cluster and its use now. Idle time is paid by the owner, and is part of no run's cost."""

    cluster: Cluster
    busy_nodes: int = 0
    idle_nodes: int = 0
    running: tuple[str, ...] = ()  # names of runs that have nodes
    waiting: tuple[str, ...] = ()  # names of runs that wait for nodes, in starting order
    idle_hours: float = 0.0  # of all nodes together, so far
    idle_usd: Decimal = Decimal(0)
    runs_usd: Decimal = Decimal(0)  # what its runs have cost, without idle time
