"""Removes everything of a run from its store."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from stoker.model import layout
from stoker.stores import Store
from stoker.stores.pacing import NEAR, pacing

_AT_ONCE = 16  # a far store takes its time for each, and many at once


def remove_run(store: Store, run_id: str) -> None:
    """May fail and be repeated. The record goes last: as long as there is one, somebody knows of the rest."""
    record = layout.record(run_id)
    keys = [stored.key for stored in store.list(layout.run(run_id).rstrip("/")) if stored.key != record]
    if pacing(store) is NEAR:
        for key in keys:
            store.delete(key)
    else:
        with ThreadPoolExecutor(_AT_ONCE, "removal") as threads:
            for _ in threads.map(store.delete, keys):
                pass
    store.delete(record)
