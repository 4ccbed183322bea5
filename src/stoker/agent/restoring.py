"""Before the script starts: the newest good checkpoint is put back, and earlier attempts are fenced off."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from stoker.agent.nodefolder import NodeFolder, remove_tree
from stoker.errors import Conflict, Corrupt, Missing, SnapshotRefused
from stoker.model import layout
from stoker.model.checkpoint import CheckpointSet, Fence, Position, fenced, visible
from stoker.model.orders import Orders
from stoker.model.snapshot import Snapshot
from stoker.model.wire import dump, load
from stoker.stores import Store
from stoker.stores.unpack import unpack

Tell = Callable[[str, str], None]


def put_back(store: Store, orders: Orders, folder: NodeFolder, tell: Tell) -> CheckpointSet | None:
    """The set that the script goes on from; None: it begins from nothing. Every file of it has been verified.

    Raises Conflict where a later attempt has taken over already.
    """
    run_id = orders.run_id
    fences = read_fences(store, run_id)
    if fenced(orders.attempt, fences):
        raise Conflict(f"attempt {orders.attempt} is over: a later one has taken its place")
    known = [layout.checkpoint_position(one.key) for one in store.list(layout.checkpoint_sets(run_id))]
    for position in visible(known, fences):
        found = _try(store, orders, position, folder, tell)
        if found:
            store.put(layout.fence(run_id, orders.attempt), dump(Fence(orders.attempt, *position)))
            return found
    store.put(layout.fence(run_id, orders.attempt), dump(Fence(orders.attempt)))
    return None


def read_fences(store: Store, run_id: str) -> list[Fence]:
    return [load(Fence, store.get(one.key)) for one in store.list(layout.fences(run_id))]


def _try(store: Store, orders: Orders, position: Position, folder: NodeFolder, tell: Tell) -> CheckpointSet | None:
    """None where the set is not whole; it is put into quarantine then, so that nobody trusts it again."""
    aside = folder.restoring
    start = time.monotonic()
    try:
        found = load(CheckpointSet, store.get(layout.checkpoint_set(orders.run_id, *position)))
        remove_tree(aside)
        unpack(store, Snapshot(found.entries), aside, partial(layout.checkpoint_file, orders.run_id))
    except (Missing, Corrupt, SnapshotRefused, KeyError, TypeError, ValueError) as error:
        remove_tree(aside)
        _quarantine(store, orders.run_id, position)
        tell(
            "quarantined", f"checkpoint {_named(position)} is damaged and was put aside: {error}; trying an earlier one"
        )
        return None
    _move(aside, folder.work)
    seconds = time.monotonic() - start
    size = sum(entry.size_bytes for entry in found.entries)
    at = f" (step {found.step:g})" if found.step is not None else ""
    what = f"{len(found.entries)} files, {size / 1e6:.1f} MB in {seconds:.2f} s"
    tell("restored", f"goes on from checkpoint {_named(position)}{at}: {what}")
    return found


def _named(position: Position) -> str:
    return f"{position[1]} of attempt {position[0]}"


def _quarantine(store: Store, run_id: str, position: Position) -> None:
    key = layout.checkpoint_set(run_id, *position)
    try:
        store.put(layout.quarantined_set(run_id, *position), store.get(key))
    except Missing:
        return
    store.delete(key)


def _move(source: Path, target: Path) -> None:
    """Everything below `source` takes its place below `target`; folders that are there already are filled."""
    for folder, _, names in os.walk(source):
        place = target / Path(folder).relative_to(source)
        place.mkdir(parents=True, exist_ok=True)
        for name in names:
            Path(folder, name).replace(place / name)
    remove_tree(source)
