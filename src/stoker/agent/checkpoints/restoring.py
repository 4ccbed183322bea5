"""Before the script starts: fences off earlier attempts and restores the newest good checkpoint."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from stoker.agent.checkpoints.folders.files import is_later, is_time, label_of, present, written_at
from stoker.agent.checkpoints.sets import fence_key, is_fenced, positions, read_fences, read_set
from stoker.agent.machine.machine import NodeFolder, remove_tree
from stoker.errors import (
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
    EntryKind,
    Fence,
    Position,
    Snapshot,
    claim,
    visible,
)
from stoker.model.wire import dump
from stoker.model.workspace import layout
from stoker.stores import Store
from stoker.stores.transfer.disk import open_object
from stoker.stores.transfer.verified import Verified
from stoker.stores.trees.unpack import unpack

TRY_FOR_S = 60.0  # while the store fails
WAIT_FOR_S = 900.0  # while the store is unreachable or refuses this node's token: both may be repaired
_PAUSE_S = 0.5
_PIECE_BYTES = 4 << 20
_COMPARED = 8  # of the newest sets of two nodes
_OFFERED = 32  # of the newest sets, to choose one from that all nodes have

Tell = Callable[[str, str], None]
Wanted = float | Position


def restore(
    store: Store, orders: Orders, folder: NodeFolder, tell: Tell, until: Wanted = math.inf
) -> CheckpointSet | None:
    """The set that the script resumes from; None: it starts from the beginning. Every file of it was verified. Sets
    with a later label than `until` are left out; a position is that of the only one that may be restored.

    Raises Conflict where a later attempt has already taken over, StoreFailed where the store fails for too long.
    """
    begun, told = time.monotonic(), False
    while True:
        try:
            return _restore(store, orders, folder, tell, until)
        except StoreFailed as error:
            passes = isinstance(error, StoreUnavailable | StoreDenied)
            if time.monotonic() - begun >= (WAIT_FOR_S if passes else TRY_FOR_S):
                raise
            if not told:
                tell("restore-waits", f"could not restore the checkpoint yet, retrying: {error.message}")
            told = True
            time.sleep(_PAUSE_S)


def _restore(store: Store, orders: Orders, folder: NodeFolder, tell: Tell, until: Wanted) -> CheckpointSet | None:
    """The fence comes first: an earlier attempt then stops, and deletes nothing that is being read here."""
    fence, mine = fence_key(orders), partial(Fence, orders.attempt, incarnation=orders.incarnation)
    if is_fenced(store, orders):
        raise Conflict(f"attempt {orders.attempt} is over: a later one has taken over")
    store.put(fence, dump(claim(orders.attempt, orders.incarnation)))
    known = visible(positions(store, orders), read_fences(store, orders))
    elsewhere = isinstance(until, tuple) and until not in known and until == _borrowed(store, orders)
    if elsewhere or _borrows(store, orders, known):
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
    store.put(fence_key(orders), dump(Fence(orders.attempt, incarnation=orders.incarnation)))
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
    if borrowed := _borrowed(store, orders):
        with suppress(Missing, Corrupt):
            found.append(read_set(store, replace(orders, node=0), borrowed))
    return found


def _borrowed(store: Store, orders: Orders) -> Position | None:
    """The set of the first node that this one's own sets began from: all nodes have that one in common. None: they
    began from nothing, or from its own."""
    mine = [one for one in read_fences(store, orders) if one.attempt < orders.attempt and one.base == Fence(0).base]
    if not mine or not orders.node:
        return None
    first = replace(orders, node=0)
    bases = {one.base for one in read_fences(store, first) if one.attempt == max(each.attempt for each in mine)}
    return next((one for one in _of_earlier(store, first) if one in bases), None)


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
    """It is of no later step. One that cannot be read is handled by the attempt to restore it."""
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
    _create(folder.work, paths, orders)


def _create(work: Path, paths: CheckpointPaths, orders: Orders) -> None:
    for name in paths.folders if orders.job.create_folders else ():
        (work / name).mkdir(parents=True, exist_ok=True)


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
    paths = CheckpointPaths(orders.job.checkpoints)
    _move(aside, folder.work, paths)
    _create(folder.work, paths, orders)
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
    remove_tree(source)
