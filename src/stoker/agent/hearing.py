"""What the server says to a node: over a network only what it has signed counts, since others may write there."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from stoker.stores import Store


@runtime_checkable
class Hearing(Protocol):
    def heard(self, key: str) -> bytes: ...


def hear(store: Store, key: str) -> bytes:
    """Raises what the store raises, and Corrupt where somebody else has written it."""
    return store.heard(key) if isinstance(store, Hearing) else store.get(key)
