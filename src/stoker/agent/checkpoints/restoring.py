"""Before the script starts: fences off earlier attempts and restores the newest good checkpoint."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from stoker.agent.checkpoints.contents import Contents
from stoker.agent.checkpoints.folders.files import is_later, is_time, label_of, present, written_at
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
from stoker.model.job.sections import CheckpointPaths
from stoker.model.orders import Orders
from stoker.model.snapshot import (
    CheckpointSet,
    Entry,
    EntryKind,
    Fence,
    Position,
    Snapshot,
    claim,
    fenced,
    retained,
    visible,
)
from stoker.model.wire import dump
from stoker.model.workspace import layout
from stoker.stores import Store
from stoker.stores.transfer.reader import open_object
from stoker.stores.transfer.verified import Verified
from stoker.stores.trees.unpack import unpack

TRY_FOR_S = 60.0  # while the store fails
WAIT_FOR_S = 900.0  # while it is unreachable, or refuses this node's token: somebody may repair that
_PAUSE_S = 0.5
_PIECE_BYTES = 4 << 20
_COMPARED = 8  # of the newest sets of two nodes
_OFFERED = 32  # of the newest sets, to choose one from that all nodes have
_SMALL_BYTES = 1 << 20  # a set that is smaller costs little to keep
_KEPT_SMALL = 16
_KEPT = 3

Tell = Callable[[str, str], None]
Wanted = float | Position


def put_back(
    store: Store, orders: Orders, folder: NodeFolder, tell: Tell, until: Wanted = math.inf
) -> CheckpointSet | None:
    """The set that the script resumes from; None: it starts from the beginning. Every file of it was verified. Sets
    with a later label than `until` are left out; a position is that of the only one that may be restored.

    Raises Conflict where a later attempt has already taken over, StoreFailed where the store fails for too long.
    """
    begun, told = time.monotonic(), False
    while True:
        try:
            return _put_back(store, orders, folder, tell, until)
        except StoreFailed as error:
            passes = isinstance(error, StoreUnavailable | StoreDenied)
            if time.monotonic() - begun >= (WAIT_FOR_S if passes else TRY_FOR_S):
                raise
            if not told:
                tell("restore-waits", f"could not restore the checkpoint yet, retrying: {error.message}")
            told = True
            time.sleep(_PAUSE_S)


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


def _put_back(store: Store, orders: Orders, folder: NodeFolder, tell: Tell, until: Wanted) -> CheckpointSet | None:
    """The fence comes first: an earlier attempt then stops, and deletes nothing that is being read here."""
    fence, mine = _fence_of(orders), partial(Fence, orders.attempt, incarnation=orders.incarnation)
    if is_fenced(store, orders):
        raise Conflict(f"attempt {orders.attempt} is over: a later one has taken over")
    store.put(fence, dump(claim(orders.attempt, orders.incarnation)))
    known = visible(positions(store, orders), read_fences(store, orders))
    if _borrows(store, orders, known):
        return _borrow(store, orders, folder, tell, until)
    for position in known:
        if not _is_early(store, orders, position, until):
            continue
        found = _try(store, orders, position, folder, tell)
        if found:
            store.put(fence, dump(mine(*position)))
            return found
    if until != math.inf:
        _begin_anew(folder, orders)
    elif known:
        tell("restore-failed", "no checkpoint could be restored: the script starts from the beginning")
    store.put(fence, dump(mine()))
    return None


def _borrow(store: Store, orders: Orders, folder: NodeFolder, tell: Tell, until: Wanted) -> CheckpointSet | None:
    """A node without checkpoints restores those of the first node: where one rank writes for all, the others read them,
    too. The first node may quarantine its own sets; this one takes the newest that is complete."""
    store.put(_fence_of(orders), dump(Fence(orders.attempt, incarnation=orders.incarnation)))
    first = replace(orders, node=0)
    for position in _of_earlier(store, first):
        with suppress(Missing, Corrupt, SnapshotRefused):
            if _is_early(store, first, position, until):
                return _unpack(store, first, position, folder, tell)
    if until != math.inf:
        _begin_anew(folder, orders)
    return None


def saved_sets(store: Store, orders: Orders) -> list[CheckpointSet]:
    """The sets that this node may restore, newest first. Those that cannot be read are left out."""
    known = visible(positions(store, orders), read_fences(store, orders))
    if _borrows(store, orders, known):
        orders = replace(orders, node=0)
        known = _of_earlier(store, orders)
    found = []
    for position in known[:_OFFERED]:
        with suppress(Missing, Corrupt):
            found.append(read_set(store, orders, position))
    return found


def _of_earlier(store: Store, orders: Orders) -> list[Position]:
    earlier = [position for position in positions(store, orders) if position[0] < orders.attempt]
    return visible(earlier, read_fences(store, orders))


def _borrows(store: Store, orders: Orders, known: Sequence[Position]) -> bool:
    if not orders.node:
        return False
    return not known or _was_resized(store, orders) or _are_copies(store, orders, known)


def _was_resized(store: Store, orders: Orders) -> bool:
    """What the first node resumes from was saved by another number of nodes: the sets of this one are older, or other
    ranks'."""
    newest = _of_earlier(store, replace(orders, node=0))[:1]
    return any(orders.widths[one] != orders.nodes for one, _ in newest if one < len(orders.widths))


def _are_copies(store: Store, orders: Orders, known: Sequence[Position]) -> bool:
    """Each node saves the same: a set of this one is, file by file, a set of the first one. Then the first one's newest
    is as good, and all resume from one checkpoint, whichever of them was last to save."""
    first = replace(orders, node=0)
    theirs = visible(positions(store, first), read_fences(store, first))
    mine = _contents_of(store, orders, known)
    return bool(mine & _contents_of(store, first, theirs))


def _contents_of(store: Store, orders: Orders, known: Sequence[Position]) -> set[frozenset[tuple[str, str]]]:
    found = set()
    for position in known[:_COMPARED]:
        with suppress(Missing, Corrupt):
            entries = read_set(store, orders, position).entries
            found.add(frozenset((one.path, one.sha256) for one in entries if one.kind is EntryKind.FILE))
    return {one for one in found if one}


def _is_early(store: Store, orders: Orders, position: Position, until: Wanted) -> bool:
    """It is of no later step. One that cannot be read is left to whoever tries to restore it."""
    if isinstance(until, tuple):
        return position == until
    if until == math.inf:
        return True
    with suppress(Missing, Corrupt):
        found = read_set(store, orders, position)
        label = written_at(found) if is_time(until) else label_of(found)
        return label is not None and not is_later(label, until)
    return False


def _begin_anew(folder: NodeFolder, orders: Orders) -> None:
    """What was restored a moment ago is of a step that other nodes do not have."""
    paths = CheckpointPaths(orders.job.checkpoints)
    for root in present(folder.work, paths):
        remove_tree(folder.work / root)
    for name in paths.folders:
        (folder.work / name).mkdir(parents=True, exist_ok=True)


def _fence_of(orders: Orders) -> str:
    if orders.incarnation == 1:
        return layout.fence(orders.run_id, orders.attempt, orders.node)
    return layout.incarnation(orders.run_id, orders.attempt, orders.incarnation, orders.node)


def _fence_keys(store: Store, orders: Orders) -> Iterator[tuple[str, int, int]]:
    for one in store.list(layout.fences(orders.run_id, orders.node)):
        with suppress(ValueError):
            yield one.key, *layout.fence_mark(one.key)


def _try(store: Store, orders: Orders, position: Position, folder: NodeFolder, tell: Tell) -> CheckpointSet | None:
    """None where the set is damaged; it is then quarantined, so that it is not used again."""
    try:
        return _unpack(store, orders, position, folder, tell)
    except (Missing, Corrupt, SnapshotRefused) as error:
        _ask_whether_it_is_there(store, orders)
        remove_tree(folder.restoring)
        _quarantine(store, orders, position)
        tell(
            "quarantined",
            f"checkpoint {_named(position)} is damaged and was quarantined: {error.message}; trying an earlier one",
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
    tell("restored", f"resumed from checkpoint {_named(position)}{at}: {what}")
    return found


def _named(position: Position) -> str:
    return f"{position[1]} of attempt {position[0]}" if position[0] else f"{position[1]} of the run that it resumes"


def _ask_whether_it_is_there(store: Store, orders: Orders) -> None:
    """A store that has lost even the orders is unavailable, which is not the checkpoint's fault."""
    try:
        store.get(layout.orders(orders.run_id, orders.attempt, orders.node), 0, 0)
    except Missing:
        raise StoreFailed("the store is unavailable") from None


def _quarantine(store: Store, orders: Orders, position: Position) -> None:
    """Removes damaged contents too: otherwise the next set with the same file would rely on them."""
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
    for entry in found.entries:  # only these are known to be below `top`
        changed_ns = found.changed_ns.get(entry.path)
        if changed_ns is not None:
            with suppress(OSError, OverflowError):
                os.utime(top / entry.path, ns=(changed_ns, changed_ns), follow_symlinks=False)
    for folder, names, files in os.walk(top, topdown=False):
        inside = [os.lstat(Path(folder, name)).st_mtime_ns for name in (*names, *files)]
        if inside:
            os.utime(folder, ns=(max(inside), max(inside)))


def _move(source: Path, target: Path, paths: CheckpointPaths) -> None:
    """Makes the checkpoint folders exactly what they were: files of the source tree are in the set, or were removed by
    the script."""
    for root in present(target, paths):
        remove_tree(target / root)
    for root in present(source, paths):
        (target / root).parent.mkdir(parents=True, exist_ok=True)
        (source / root).rename(target / root)
    for folder in paths.folders:
        (target / folder).mkdir(parents=True, exist_ok=True)
    remove_tree(source)


# Which sets of a run stay in the store: those that retention requires, with their contents.


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
