"""Brings a run's outputs from the store to a folder, each file verified."""

from __future__ import annotations

from pathlib import Path

from stoker.errors import Missing
from stoker.model import layout, wire
from stoker.model.run import Run, RunState
from stoker.model.snapshot import Snapshot
from stoker.stores import Store
from stoker.stores.landing import Landing, choose_folder
from stoker.stores.readahead import open_in_order


def land(store: Store, run: Run, parent: Path) -> Path:
    """Returns the folder. A run that did not succeed lands beside, under a name that says so."""
    name = run.name if run.state is RunState.SUCCEEDED else f"{run.name}-{run.state}"
    folder = choose_folder(parent, name, run.id)
    entries = manifest(store, run).entries
    landing = Landing(entries, folder, run.id)
    sizes, wanted = {entry.sha256: entry.size_bytes for entry in entries}, list(landing.wanted())
    contents = open_in_order(store, [(layout.output(run.id, sha256), sizes[sha256]) for sha256 in wanted])
    for sha256, content in zip(wanted, contents, strict=True):
        landing.take(sha256, content)
    landing.finish()
    return folder


def manifest(store: Store, run: Run) -> Snapshot:
    """The outputs of the newest attempt that has any."""
    for attempt in reversed(run.attempts):
        try:
            return wire.load(Snapshot, store.get(layout.outputs(run.id, attempt.number)))
        except Missing:
            continue
    return Snapshot(())
