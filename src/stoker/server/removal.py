"""Removes everything of a run from its store."""

from __future__ import annotations

from stoker.model import layout
from stoker.stores import Store


def remove_run(store: Store, run_id: str) -> None:
    """May fail and be repeated. The record goes last: as long as there is one, somebody knows of the rest."""
    top, record = layout.run(run_id), layout.record(run_id)
    store.remove_below(top)
    store.delete(record)
