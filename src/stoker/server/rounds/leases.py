"""Renews the leases of nodes that cost money, as long as their runs need them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from stoker.engine.nodes import lease as reckoning
from stoker.model import wire
from stoker.model.node.node import Lease
from stoker.model.run.money import Fuse
from stoker.model.run.run import Member, Run
from stoker.model.workspace import layout
from stoker.providers import Provider, leased
from stoker.server.rounds.outside import Clock
from stoker.server.stores.accesses import Accesses
from stoker.server.stores.stores import StoreDirectory

RENEWALS = 4  # in the time of one lease: three of them may get lost
OFTEN_S = 150.0  # a server that goes away has renewed a long lease not longer ago than this


class Leases:
    """Called from several threads."""

    def __init__(
        self, providers: Mapping[str, Provider], stores: StoreDirectory, accesses: Accesses, clock: Clock
    ) -> None:
        self._providers = providers
        self._stores = stores
        self._accesses = accesses
        self._clock = clock
        # By node key: when it is renewed next, in unix seconds, and how long the last one was. Unknown: now, as after a
        # restart. A computer that slept is late, and its steady clock does not know.
        self._given: dict[str, tuple[float, float]] = {}
        self.renewed_at: dict[str, datetime] = {}  # by node key: a node that nobody sees stays for as long as this says

    def lasting_s(self, run: Run, attempt: Member, fuse: Fuse | None = None) -> float:
        """How long a lease of this node is now; 0: it has none."""
        features = self._providers[run.job.on].features
        lease_s = reckoning.lease_s(run, attempt, fuse, features, self._clock.now()) if features.lease_s else 0.0
        # A node that cannot write to its store any more has nothing to stay for.
        return min(lease_s, max(self._accesses.lasts_s(attempt.key), self.idle_s(run)))

    def idle_s(self, run: Run) -> float:
        """The same, of one that has nothing to do."""
        return reckoning.idle(self._providers[run.job.on].features)

    def is_due(self, attempt: Member, lease_s: float) -> bool:
        """Cheap: asked in every round. One that becomes much shorter is given at once."""
        due, before_s = self._given.get(attempt.key, (0.0, 0.0))
        return bool(lease_s) and (self._clock.now().timestamp() >= due or lease_s < before_s / 2)

    def renew(self, run: Run, attempt: Member, lease_s: float) -> None:
        if not lease_s:
            return
        now = self._clock.now()
        # The number only has to grow, also when a server starts anew.
        lease = Lease(int(now.timestamp() * 1000), lease_s, now)
        key = layout.lease(run.id, attempt.number, attempt.node)
        self._stores.of(run).put(key, self._accesses.signed(run, attempt, key, wire.dump(lease)))
        self.renewed_at[attempt.key] = self._clock.now()
        self._given[attempt.key] = self._clock.now().timestamp() + min(lease_s / RENEWALS, OFTEN_S), lease_s

    def mark(self, run: Run, attempt: Member, lease_s: float) -> None:
        """Writes on the node how long it may stay. Only for whoever finds it later: the node itself does not look."""
        if provider := leased(self._providers[run.job.on]):
            provider.renew(attempt.key, lease_s)

    def forget(self, node_key: str) -> None:
        self._given.pop(node_key, None)
        self.renewed_at.pop(node_key, None)
