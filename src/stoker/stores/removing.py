"""Removes everything below a prefix of a store: a run's container in one request where it has one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, runtime_checkable

from stoker.stores import Store
from stoker.stores.objectstore import ObjectStore

_AT_ONCE = 8


@runtime_checkable
class RemovesBelow(Protocol):
    """A bucket that may know a quicker way than one object after the other."""

    def remove_below(self, prefix: str) -> bool:
        """Whether everything below the prefix is gone now; false: nothing was done."""
        ...


def remove_below(store: Store, prefix: str) -> None:
    """`prefix` ends with `/`. May be repeated. What others write meanwhile may stay."""
    if isinstance(store, ObjectStore) and isinstance(store.bucket, RemovesBelow) and store.bucket.remove_below(prefix):
        return
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        list(threads.map(lambda one: store.delete(one.key), list(store.list(prefix.rstrip("/")))))
