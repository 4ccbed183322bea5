"""Before the script starts: earlier attempts are fenced off, and the newest good checkpoint is put back."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from stoker.agent.checkpoints.contents import Contents
from stoker.agent.checkpoints.tree import present
from stoker.agent.machine.machine import NodeFolder, remove_tree
from stoker.errors import (
    AlreadyThere,
    Conflict,
    Corrupt,
    Malformed,
    Missing,
    SnapshotRefused,
    StoreDenied,
    StoreFailed,
    StoreUnavailable,
)
from stoker.model import untrusted
from stoker.model.checkpoint import CheckpointSet, Fence, Position, claim, fenced, retained, visible
from stoker.model.job.checkpointpaths import CheckpointPaths
from stoker.model.node.orders import Orders
from stoker.model.snapshot import Entry, EntryKind, Snapshot
from stoker.model.wire import dump
from stoker.model.workspace import layout
from stoker.stores import Store
from stoker.stores.transfer.reader import open_object
from stoker.stores.transfer.verified import Verified
from stoker.stores.trees.unpack import unpack

TRY_FOR_S = 60.0  # a store that fails
WAIT_FOR_S = 900.0  # one that cannot be reached, or refuses what this node was given: somebody repairs that
_PAUSE_S = 0.5
_PIECE_BYTES = 4 << 20

Tell = Callable[[str, str], None]


def put_back(store: Store, orders: Orders, folder: NodeFolder, tell: Tell) -> CheckpointSet | None:
    """The set that the script goes on from; None: it begins from nothing. Every file of it has been verified.

    Raises Conflict where a later attempt has taken over already, StoreFailed where the store fails for too long.
    """
    begun, told = time.monotonic(), False
    while True:
        try:
            return _put_back(store, orders, folder, tell)
        except StoreFailed as error:
            passes = isinstance(error, StoreUnavailable | StoreDenied)
            if time.monotonic() - begun >= (WAIT_FOR_S if passes else TRY_FOR_S):
                raise
            if not told:
                tell("restore-waits", f"the checkpoint cannot be put back yet, trying again: {error.message}")
            told = True
            time.sleep(_PAUSE_S)


def read_fences(store: Store, orders: Orders) -> list[Fence]:
    """One that cannot be read still keeps earlier attempts out, but hides nothing."""
    found = []
    for key, attempt, incarnation in _fence_keys(store, orders):
        try:
            fence = untrusted.fetch(Fence, store, key, untrusted.SMALL_BYTES, datetime.now(UTC))
            found.append(replace(fence, attempt=attempt, incarnation=incarnation))
        except (Missing, Malformed):
            found.append(claim(attempt, incarnation))
    return found


def is_fenced(store: Store, orders: Orders) -> bool:
    """A later attempt, or a later machine of this one, has taken over. Costs one listing."""
    return fenced(orders.attempt, (claim(*mark) for mark in fence_marks(store, orders)), orders.incarnation)


def fence_marks(store: Store, orders: Orders) -> list[tuple[int, int]]:
    """Attempts that have taken over, and which of their machines."""
    return [(attempt, incarnation) for _, attempt, incarnation in _fence_keys(store, orders)]


def positions(store: Store, orders: Orders) -> list[Position]:
    """Of every set this node has, visible or not. What else may lie there is not ours."""
    found = []
    for one in store.list(layout.checkpoint_sets(orders.run_id, orders.node)):
        with suppress(ValueError):
            found.append(layout.checkpoint_position(one.key))
    return found


def read_set(store: Store, orders: Orders, position: Position) -> CheckpointSet:
    """Raises Missing, and Corrupt where it is not what was committed there. A script can write one, seal and all: its
    paths stay in the checkpoint folders."""
    key = layout.checkpoint_set(orders.run_id, *position, orders.node)
    try:
        found = untrusted.fetch(CheckpointSet, store, key, untrusted.MANIFEST_BYTES, datetime.now(UTC))
    except Malformed as error:
        raise Corrupt(f"its manifest cannot be read: {error.message}") from error
    paths = CheckpointPaths(orders.job.checkpoints)
    if not found.whole:
        raise Corrupt("its manifest is not as it was written")
    if found.position != position or not all(_is_ours(paths, one) for one in found.entries):
        raise Corrupt("its manifest is that of another checkpoint")
    return found


def _is_ours(paths: CheckpointPaths, entry: Entry) -> bool:
    """A folder that is named is not itself in a set, but what is in it."""
    root = paths.root(entry.path)
    return root is not None and not (root == entry.path and root in paths.folders)


def _put_back(store: Store, orders: Orders, folder: NodeFolder, tell: Tell) -> CheckpointSet | None:
    """The fence comes first: whoever still commits stops, and so removes nothing that is being read here."""
    fence, mine = _fence_of(orders), partial(Fence, orders.attempt, incarnation=orders.incarnation)
    if is_fenced(store, orders):
        raise Conflict(f"attempt {orders.attempt} is over: a later one has taken its place")
    store.put(fence, dump(claim(orders.attempt, orders.incarnation)))
    known = visible(positions(store, orders), read_fences(store, orders))
    for position in known:
        found = _try(store, orders, position, folder, tell)
        if found:
            store.put(fence, dump(mine(*position)))
            return found
    if not known and orders.node:
        return _borrow(store, orders, folder, tell)
    if known:
        tell("restore-failed", "no checkpoint could be used: the script begins from nothing")
    store.put(fence, dump(mine()))
    return None


def _borrow(store: Store, orders: Orders, folder: NodeFolder, tell: Tell) -> CheckpointSet | None:
    """A node that has never kept anything is put back what the first node had: where one rank writes for all, the
    others read it, too. The first node's sets stay its own to judge: of those, the newest that is whole is taken."""
    store.put(_fence_of(orders), dump(Fence(orders.attempt, incarnation=orders.incarnation)))
    first = replace(orders, node=0)
    earlier = [position for position in positions(store, first) if position[0] < orders.attempt]
    for position in visible(earlier, read_fences(store, first)):
        with suppress(Missing, Corrupt, SnapshotRefused):
            return _unpack(store, first, position, folder, tell)
    return None


def _fence_of(orders: Orders) -> str:
    if orders.incarnation == 1:
        return layout.fence(orders.run_id, orders.attempt, orders.node)
    return layout.incarnation(orders.run_id, orders.attempt, orders.incarnation, orders.node)


def _fence_keys(store: Store, orders: Orders) -> Iterator[tuple[str, int, int]]:
    for one in store.list(layout.fences(orders.run_id, orders.node)):
        with suppress(ValueError):
            yield one.key, *layout.fence_mark(one.key)


def _try(store: Store, orders: Orders, position: Position, folder: NodeFolder, tell: Tell) -> CheckpointSet | None:
    """None where the set is not whole; it is put into quarantine then, so that nobody trusts it again."""
    try:
        return _unpack(store, orders, position, folder, tell)
    except (Missing, Corrupt, SnapshotRefused) as error:
        _ask_whether_it_is_there(store, orders)
        remove_tree(folder.restoring)
        _quarantine(store, orders, position)
        tell(
            "quarantined",
            f"checkpoint {_named(position)} is damaged and was put aside: {error.message}; trying an earlier one",
        )
        return None


def _unpack(store: Store, orders: Orders, position: Position, folder: NodeFolder, tell: Tell) -> CheckpointSet:
    aside, start = folder.restoring, time.monotonic()
    found = read_set(store, orders, position)
    remove_tree(aside)
    unpack(store, Snapshot(found.entries), aside, partial(layout.checkpoint_file, orders.run_id, node=orders.node))
    _set_times(aside, found)
    _move(aside, folder.work, CheckpointPaths(orders.job.checkpoints))
    seconds = time.monotonic() - start
    size = sum(entry.size_bytes for entry in found.entries)
    at = f" (step {found.step:g})" if found.step is not None else ""
    files = sum(entry.kind is EntryKind.FILE for entry in found.entries)
    what = f"{files} {'file' if files == 1 else 'files'}, {size / 1e6:.1f} MB in {seconds:.2f} s"
    tell("restored", f"goes on from checkpoint {_named(position)}{at}: {what}")
    return found


def _named(position: Position) -> str:
    return f"{position[1]} of attempt {position[0]}" if position[0] else f"{position[1]} of the run that it resumes"


def _ask_whether_it_is_there(store: Store, orders: Orders) -> None:
    """A store that has lost even the orders is out of reach, which is no fault of the checkpoint."""
    try:
        store.get(layout.orders(orders.run_id, orders.attempt, orders.node), 0, 0)
    except Missing:
        raise StoreFailed("the store is not there") from None


def _quarantine(store: Store, orders: Orders, position: Position) -> None:
    """Contents that are damaged go too: otherwise the next set that has the same file would count on them."""
    run_id, found = orders.run_id, None
    key = layout.checkpoint_set(run_id, *position, orders.node)
    with suppress(Missing, Corrupt):
        found = read_set(store, orders, position)
    with suppress(Missing, Malformed):
        kept = untrusted.fetch_bytes(store, key, untrusted.MANIFEST_BYTES)
        store.put(layout.quarantined_set(run_id, *position, orders.node), kept)
    store.delete(key)
    files = {one.sha256: one.size_bytes for one in found.entries if one.kind is EntryKind.FILE} if found else {}
    for sha256, size in files.items():
        content = layout.checkpoint_file(run_id, sha256, orders.node)
        try:
            reader = Verified(open_object(store, content), sha256, size)
            while reader.read(_PIECE_BYTES):
                pass
        except (Missing, Corrupt):
            store.delete(content)


def _set_times(top: Path, found: CheckpointSet) -> None:
    """Scripts look for the newest of their files, and for the newest folder: the one with the newest file."""
    for entry in found.entries:  # which alone are known to lie below `top`
        changed_ns = found.changed_ns.get(entry.path)
        if changed_ns is not None:
            with suppress(OSError, OverflowError):
                os.utime(top / entry.path, ns=(changed_ns, changed_ns), follow_symlinks=False)
    for folder, names, files in os.walk(top, topdown=False):
        inside = [os.lstat(Path(folder, name)).st_mtime_ns for name in (*names, *files)]
        if inside:
            os.utime(folder, ns=(max(inside), max(inside)))


def _move(source: Path, target: Path, paths: CheckpointPaths) -> None:
    """The checkpoints become what they were, and nothing else: what the source tree had there was in the set, or had
    been removed by the script."""
    for root in present(target, paths):
        remove_tree(target / root)
    for root in present(source, paths):
        (target / root).parent.mkdir(parents=True, exist_ok=True)
        (source / root).rename(target / root)
    for folder in paths.folders:
        (target / folder).mkdir(parents=True, exist_ok=True)
    remove_tree(source)


# Which of a run's sets stay in the store: those that retention asks for, and the contents they need.


class Retaining:
    """For one thread. Once an attempt has fenced off the earlier ones, what they left is its to remove."""

    def __init__(self, store: Store, orders: Orders, contents: Contents) -> None:
        self._store = store
        self._orders = orders
        self._contents = contents
        self._sets: list[CheckpointSet] = []
        self._hidden: list[Position] = []
        self._known = orders.begins  # there is nothing yet

    def take_stock(self) -> None:
        """What earlier attempts left: asked once, and late, when those that were fenced off have stopped."""
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
                continue  # whoever tries to put it back will say so
        stored = self._store.list(layout.checkpoint_files(run_id, self._orders.node))
        self._contents.adopt(sha256 for one in stored if (sha256 := layout.checkpoint_content(one.key)))
        self._sets, self._hidden = sets, [one for one in there if one not in shown]
        self._known = True

    def doubt(self, position: Position) -> None:
        """A set is about to be written. As long as nobody says that it was, it does not count."""
        self._hidden.append(position)

    def add(self, made: CheckpointSet) -> None:
        self._hidden.remove(made.position)
        self._sets.append(made)

    def tidy(self) -> None:
        """May fail and be called again. First the sets, then what only they had: a set that is there is whole.

        Raises AlreadyThere where a later attempt has taken over: then nothing is this one's to remove.
        """
        rules, run_id = self._orders.job.retention, self._orders.run_id
        kept = retained(self._sets, rules.keep, rules.best or "")
        if is_fenced(self._store, self._orders):
            raise AlreadyThere("a later attempt has taken over")
        for position in [*self._hidden, *(one.position for one in self._sets if one.position not in kept)]:
            self._store.delete(layout.checkpoint_set(run_id, *position, self._orders.node))
        self._hidden = []
        self._sets = [one for one in self._sets if one.position in kept]
        self._contents.forget({entry.sha256 for one in self._sets for entry in one.entries}, 0.0)
