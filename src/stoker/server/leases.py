"""Renews the leases of nodes that cost money, as long as their runs need them."""

from __future__ import annotations

from collections.abc import Mapping

from stoker.model import layout, wire
from stoker.model.lease import Lease
from stoker.model.run import Attempt, Run
from stoker.providers import Provider, leased
from stoker.server.clock import Clock
from stoker.server.stores import Stores

RENEWALS = 4  # in the time of one lease: three of them may get lost


class Leases:
    """Called from several threads."""

    def __init__(self, providers: Mapping[str, Provider], stores: Stores, clock: Clock) -> None:
        self._providers = providers
        self._stores = stores
        self._clock = clock
        self._due: dict[str, float] = {}  # by node key, by the steady clock; unknown: now, as after a restart

    def is_due(self, run: Run, attempt: Attempt) -> bool:
        """Cheap: asked in every round."""
        return bool(self._lease_s(run)) and self._clock.steady() >= self._due.get(attempt.key, 0.0)

    def renew(self, run: Run, attempt: Attempt) -> None:
        lease_s = self._lease_s(run)
        if not lease_s:
            return
        # The number only has to grow, also when a server starts anew.
        lease = Lease(int(self._clock.now().timestamp() * 1000), lease_s)
        self._stores.of(run).put(layout.lease(run.id, attempt.number), wire.dump(lease))
        self._due[attempt.key] = self._clock.steady() + lease_s / RENEWALS

    def mark(self, run: Run, attempt: Attempt) -> None:
        """Writes on the node how long it may stay. Only for whoever finds it later: the node itself does not look."""
        if provider := leased(self._providers[run.job.on]):
            provider.renew(attempt.key)

    def forget(self, node_key: str) -> None:
        self._due.pop(node_key, None)

    def _lease_s(self, run: Run) -> float:
        return self._providers[run.job.on].features.lease_s
