"""Before a script goes on: the outputs it had are put back, so that it ends as if it had never been interrupted."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from stoker.agent.nodefolder import NodeFolder, remove_tree
from stoker.agent.restoring import Tell
from stoker.errors import Corrupt, Missing, SnapshotRefused
from stoker.model import layout, untrusted
from stoker.model.checkpointpaths import CheckpointPaths
from stoker.model.orders import Orders
from stoker.model.snapshot import EntryKind, Snapshot
from stoker.stores import Store
from stoker.stores.trees.unpack import unpack


def carry_over(store: Store, orders: Orders, folder: NodeFolder, tell: Tell) -> Snapshot:
    """What was put back, by its path below the outputs. Checkpoints that lie among the outputs are not touched: they
    are as they were committed. Raises StoreFailed where the store does not answer."""
    try:
        paths, top = CheckpointPaths(orders.job.checkpoints), orders.job.outputs
        entries = _newest(store, orders).entries
        wanted = Snapshot(tuple(one for one in entries if paths.root(f"{top}/{one.path}") is None))
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
    newest = orders.attempt if orders.incarnation > 1 else orders.attempt - 1
    for attempt in range(newest, -1, -1):  # 0: of the run that this one starts from
        try:
            key = layout.outputs(orders.run_id, attempt, orders.node)
            return untrusted.fetch(Snapshot, store, key, untrusted.MANIFEST_BYTES, datetime.now(UTC))
        except Missing:
            continue
    return Snapshot(())


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
