"""Brings what a run made from the store to a folder, each file verified."""

from __future__ import annotations

from pathlib import Path

from stoker.model.run import Run, RunState
from stoker.server.parcels import brought
from stoker.stores import Store
from stoker.stores.transfer.readahead import open_in_order
from stoker.stores.trees.landing import Landing, choose_folder


def land(store: Store, run: Run, parent: Path) -> Path:
    """Returns the folder. A run that did not succeed lands beside, under a name that says so."""
    name = run.name if run.state is RunState.SUCCEEDED else f"{run.name}-{run.state}"
    folder = choose_folder(parent, name, run.id)
    parcel = brought(store, run)
    landing = Landing(parcel.entries, folder, run.id)
    places, wanted = parcel.contents, list(landing.wanted())
    contents = open_in_order(store, [places[sha256] for sha256 in wanted])
    for sha256, content in zip(wanted, contents, strict=True):
        landing.take(sha256, content)
    landing.finish()
    return folder
