"""The sets of a node in the store: which exist, which later attempts have fenced off, and which stay."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime

from stoker.agent.checkpoints.contents import Contents
from stoker.errors import (
    AlreadyThere,
    Corrupt,
    Malformed,
    Missing,
)
from stoker.model import untrusted
from stoker.model.job.sections import CheckpointPaths
from stoker.model.orders import Orders
from stoker.model.snapshot import (
    CheckpointSet,
    Entry,
    Fence,
    Position,
    claim,
    fenced,
    retained,
    visible,
)
from stoker.model.workspace import layout
from stoker.stores import Store

_SMALL_BYTES = 1 << 20  # a set that is smaller costs little to keep
_KEPT_SMALL = 16
_KEPT = 3


def positions(store: Store, orders: Orders) -> list[Position]:
    """Of every set of this node, visible or not. Other keys are ignored."""
    found = []
    for one in store.list(layout.checkpoint_sets(orders.run_id, orders.node)):
        with suppress(ValueError):
            found.append(layout.checkpoint_position(one.key))
    return found


def read_set(store: Store, orders: Orders, position: Position) -> CheckpointSet:
    """Raises Missing, and Corrupt where it is not the committed one. A script can forge one, hash included, so its
    paths must be inside the checkpoint folders."""
    key = layout.checkpoint_set(orders.run_id, *position, orders.node)
    try:
        found = untrusted.fetch(CheckpointSet, store, key, untrusted.MANIFEST_BYTES, datetime.now(UTC))
    except Malformed as error:
        raise Corrupt(f"its manifest is unreadable: {error.message}") from error
    paths = CheckpointPaths(orders.job.checkpoints)
    if not found.whole:
        raise Corrupt("the checksum of its manifest does not match")
    if found.position != position or not all(_is_ours(paths, one) for one in found.entries):
        raise Corrupt("its manifest belongs to another checkpoint")
    return found


def _is_ours(paths: CheckpointPaths, entry: Entry) -> bool:
    """A set contains the files of a named folder, not the folder itself."""
    root = paths.root(entry.path)
    return root is not None and not (root == entry.path and root in paths.folders)


def read_fences(store: Store, orders: Orders) -> list[Fence]:
    """An unreadable one still fences off earlier attempts, but hides no set."""
    found = []
    for key, attempt, incarnation in _fence_keys(store, orders):
        try:
            fence = untrusted.fetch(Fence, store, key, untrusted.SMALL_BYTES, datetime.now(UTC))
            found.append(replace(fence, attempt=attempt, incarnation=incarnation))
        except (Missing, Malformed):
            found.append(claim(attempt, incarnation))
    return found


def is_fenced(store: Store, orders: Orders) -> bool:
    """A later attempt, or a later VM of this one, has taken over. Costs one listing."""
    return fenced(orders.attempt, (claim(*mark) for mark in fence_marks(store, orders)), orders.incarnation)


def fence_marks(store: Store, orders: Orders) -> list[tuple[int, int]]:
    """Attempts that have taken over, with the number of their VM."""
    return [(attempt, incarnation) for _, attempt, incarnation in _fence_keys(store, orders)]


def fence_key(orders: Orders) -> str:
    if orders.incarnation == 1:
        return layout.fence(orders.run_id, orders.attempt, orders.node)
    return layout.incarnation(orders.run_id, orders.attempt, orders.incarnation, orders.node)


def _fence_keys(store: Store, orders: Orders) -> Iterator[tuple[str, int, int]]:
    for one in store.list(layout.fences(orders.run_id, orders.node)):
        with suppress(ValueError):
            yield one.key, *layout.fence_mark(one.key)


class Retaining:
    """For one thread. An attempt that has fenced off the earlier ones may delete what they left."""

    def __init__(self, store: Store, orders: Orders, contents: Contents) -> None:
        self._store = store
        self._orders = orders
        self._contents = contents
        self._sets: list[CheckpointSet] = []
        self._hidden: list[Position] = []
        self._known = orders.begins  # nothing exists yet

    def take_stock(self) -> None:
        """What earlier attempts left: read once, and late, when those that were fenced off have stopped."""
        if self._known:
            return
        run_id = self._orders.run_id
        there = positions(self._store, self._orders)
        shown = visible(there, read_fences(self._store, self._orders))
        sets = []
        for position in shown:
            try:
                sets.append(read_set(self._store, self._orders, position))
            except (Missing, Corrupt):
                continue  # a restore would report it
        stored = self._store.list(layout.checkpoint_files(run_id, self._orders.node))
        self._contents.adopt(sha256 for one in stored if (sha256 := layout.checkpoint_content(one.key)))
        self._sets, self._hidden = sets, [one for one in there if one not in shown]
        self._known = True

    def doubt(self, position: Position) -> None:
        """A set is about to be written. It does not count until its commit is confirmed."""
        self._hidden.append(position)

    def add(self, made: CheckpointSet) -> None:
        self._hidden.remove(made.position)
        self._sets.append(made)

    @property
    def _keep(self) -> int:
        """How many of the newest. The newest one of a node is not always one that the other nodes of its gang have."""
        keep = self._orders.job.retention.keep
        if self._orders.nodes == 1 or not self._sets:
            return keep
        size_bytes = sum(entry.size_bytes for entry in self._sets[-1].entries)
        return max(keep, _KEPT_SMALL if size_bytes < _SMALL_BYTES else _KEPT)

    def tidy(self) -> None:
        """May fail and be called again. Deletes sets before the contents that only they had, so that a set that exists
        is complete.

        Raises AlreadyThere where a later attempt has taken over: then this one may delete nothing.
        """
        rules, run_id = self._orders.job.retention, self._orders.run_id
        kept = retained(self._sets, self._keep, rules.best or "")
        if is_fenced(self._store, self._orders):
            raise AlreadyThere("a later attempt has taken over")
        for position in [*self._hidden, *(one.position for one in self._sets if one.position not in kept)]:
            self._store.delete(layout.checkpoint_set(run_id, *position, self._orders.node))
        self._hidden = []
        self._sets = [one for one in self._sets if one.position in kept]
        self._contents.forget({entry.sha256 for one in self._sets for entry in one.entries}, 0.0)
