"""Removes everything of a run from its store."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from stoker.model import layout
from stoker.stores import Store
from stoker.stores.bucket import RemovesBelow
from stoker.stores.pacing import NEAR, pacing

_AT_ONCE = 16  # a far store takes its time for each, and many at once


def remove_run(store: Store, run_id: str) -> None:
    """May fail and be repeated. The record goes last: as long as there is one, somebody knows of the rest."""
    top, record = layout.run(run_id), layout.record(run_id)
    if isinstance(store, RemovesBelow) and store.remove_below(top):
        return
    keys = [stored.key for stored in store.list(top.rstrip("/")) if stored.key != record]
    if pacing(store) is NEAR:
        for key in keys:
            store.delete(key)
    else:
        with ThreadPoolExecutor(_AT_ONCE, "removal") as threads:
            for _ in threads.map(store.delete, keys):
                pass
    store.delete(record)
