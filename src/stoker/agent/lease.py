"""How long a node may still stay, by its own steady clock."""

from __future__ import annotations

from collections.abc import Callable

from stoker.agent.hearing import hear
from stoker.errors import StokerError
from stoker.model.lease import Lease
from stoker.model.wire import load
from stoker.stores import Store


class LeaseWatch:
    """A lease that cannot be read runs on: the store being away is no renewal, and no reason to hurry either."""

    def __init__(self, store: Store, key: str, first_s: float, steady: Callable[[], float], number: int = -1) -> None:
        """`number` is that of a lease of which `first_s` are left: it is not begun again."""
        self._store = store
        self._key = key
        self._steady = steady
        self._number = number
        self._until = steady() + first_s  # what the node was started with
        self.heard_at = steady()  # when a new one was last seen

    def look(self) -> float:
        """Reads the lease again, and returns the seconds that are left of it: none, or fewer, when it is over."""
        try:
            lease = load(Lease, hear(self._store, self._key))
        except (StokerError, ValueError, KeyError, TypeError):
            return self.left_s
        if lease.number > self._number:
            self._number = lease.number
            self.heard_at = self._steady()
            self._until = self.heard_at + lease.seconds
        return self.left_s

    @property
    def left_s(self) -> float:
        return self._until - self._steady()
