"""Removes everything of a run from its store."""

from __future__ import annotations

from stoker.model import layout
from stoker.stores import Store
from stoker.stores.objects.bucket import RemovesBelow


def remove_run(store: Store, run_id: str) -> None:
    """May fail and be repeated. The record goes last: as long as there is one, somebody knows of the rest."""
    top, record = layout.run(run_id), layout.record(run_id)
    if isinstance(store, RemovesBelow):
        store.remove_below(top)
    else:
        for key in [stored.key for stored in store.list(top.rstrip("/"))]:
            store.delete(key)
    store.delete(record)
