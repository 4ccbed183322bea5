"""Before a script goes on: the outputs it had are put back, so that it ends as if it had never been interrupted."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from stoker.agent.nodefolder import NodeFolder, remove_tree
from stoker.agent.restoring import Tell, folders
from stoker.errors import Corrupt, Missing, SnapshotRefused
from stoker.model import layout
from stoker.model.orders import Orders
from stoker.model.snapshot import EntryKind, Snapshot
from stoker.model.wire import load
from stoker.stores import Store
from stoker.stores.unpack import unpack


def carry_over(store: Store, orders: Orders, folder: NodeFolder, tell: Tell) -> Snapshot:
    """What was put back, by its path below the outputs. Checkpoints that lie among the outputs are not touched: they
    are as they were committed. Raises StoreFailed where the store does not answer."""
    wanted = Snapshot(tuple(one for one in _newest(store, orders).entries if not _kept(orders, one.path)))
    try:
        remove_tree(folder.restoring)
        unpack(store, wanted, folder.restoring, partial(layout.output, orders.run_id))
    except (Missing, Corrupt, SnapshotRefused) as error:
        remove_tree(folder.restoring)
        tell("outputs-lost", f"the outputs of earlier attempts cannot be put back: {error.message}")
        return Snapshot(())
    _move(wanted, folder.restoring, folder.work / orders.job.outputs)
    return wanted


def _newest(store: Store, orders: Orders) -> Snapshot:
    """Each attempt began with what the one before it had: the newest that got so far has all."""
    for attempt in range(orders.attempt - 1, 0, -1):
        try:
            return load(Snapshot, store.get(layout.outputs(orders.run_id, attempt, orders.node)))
        except Missing:
            continue
    return Snapshot(())


def _kept(orders: Orders, path: str) -> bool:
    place = f"{orders.job.outputs}/{path}"
    return any(place == top or place.startswith(f"{top}/") for top in folders(orders))


def _move(wanted: Snapshot, source: Path, target: Path) -> None:
    for entry in wanted.entries:
        place = target / entry.path
        if entry.kind is EntryKind.FOLDER:
            place.mkdir(parents=True, exist_ok=True)
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        if place.is_dir() and not place.is_symlink():
            remove_tree(place)  # of the source tree; the script had made something else of it
        (source / entry.path).replace(place)
    remove_tree(source)
