"""The code of all runs: stored once on this computer and in each store, and protected while a submission uses it."""

from __future__ import annotations

import hashlib
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

from stoker.errors import Corrupt, Missing, StokerError, Unanswered
from stoker.model import wire
from stoker.model.snapshot import EntryKind, Snapshot
from stoker.model.workspace import layout
from stoker.model.workspace.store import FOLDER
from stoker.server.stores.stores import StoreDirectory
from stoker.stores import NEAR, Store, pacing
from stoker.stores.transfer.disk import open_object
from stoker.stores.trees.blobstream import GLANCE_BYTES, Bundle, read_blobs, write_bundle
from stoker.stores.trees.unpack import verified

Files = frozenset[str]
NONE: Files = frozenset()

PATIENCE_S = 3600.0  # after which a submission that has not arrived is given up
WAIT_S = 25.0  # for a removal, in each of two stores: shorter than the client's time-out


@dataclass(frozen=True, slots=True)
class Coming:
    """Snapshots that are about to be used, and files that are being uploaded for them."""

    snapshots: frozenset[str]
    files: Files


class Arrivals:
    """A submission checks what the store has, and its run refers to the code only later. In between, none of it may be
    deleted. A submission waits for a running removal in that store, and the next removal sees it.

    It is kept in memory: after a restart of the server, a submission in progress gets the error that code is missing,
    and uploads it again. Called from several threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, wait_s: float = WAIT_S) -> None:
        self._clock = clock
        self._wait_s = wait_s
        self._expected: dict[str, tuple[float, Files]] = {}  # by snapshot: when it expires, and its files
        self._using: Counter[tuple[str, Files]] = Counter()
        self._facts = threading.Lock()
        self._removing: dict[str, Any] = {}  # by store: a reentrant lock

    @contextmanager
    def using(self, store: str, snapshot: str, files: Files = NONE) -> Iterator[None]:
        """None of it is deleted meanwhile. May wait for a removal at the start."""
        self.begin(store, snapshot, files)
        try:
            yield
        finally:
            self.end(snapshot, files)

    def begin(self, store: str, snapshot: str, files: Files = NONE) -> None:
        """Raises Unanswered where a removal takes too long."""
        # The folder comes last: waiting for a removal in a remote store then blocks nobody else.
        with self._turn(store, self._wait_s), self._turn(FOLDER, self._wait_s), self._facts:
            self._using[snapshot, files] += 1

    def end(self, snapshot: str, files: Files = NONE) -> None:
        """Never waits."""
        with self._facts:
            self._using[snapshot, files] -= 1

    def expect(self, snapshot: str, files: Files) -> None:
        """A run is about to refer to it, or its files are being uploaded. Never waits: call it inside `using`."""
        with self._facts:
            self._expected[snapshot] = self._clock() + PATIENCE_S, files

    def arrived(self, snapshot: str) -> None:
        """A run refers to it now. Never waits. Another submission of the same code may have to upload it again, if that
        run is removed first."""
        with self._facts:
            self._expected.pop(snapshot, None)

    @contextmanager
    def still(self, store: str) -> Iterator[Coming]:
        """What is coming; no submission starts in this store meanwhile."""
        with self._turn(store):
            yield self._coming()

    def _coming(self) -> Coming:
        with self._facts:
            now = self._clock()
            self._expected = {one: known for one, known in self._expected.items() if known[0] > now}
            self._using = +self._using
            known = [*self._using, *((snapshot, files) for snapshot, (_, files) in self._expected.items())]
            snapshots = frozenset(snapshot for snapshot, _ in known)
            return Coming(snapshots, frozenset(one for _, files in known for one in files))

    @contextmanager
    def _turn(self, store: str, wait_s: float = -1) -> Iterator[None]:
        with self._facts:
            lock = self._removing.setdefault(store, threading.RLock())
        if not lock.acquire(timeout=wait_s):
            raise Unanswered(f"old code is being removed from the store `{store}`", hint="try again in a moment")
        try:
            yield
        finally:
            lock.release()


_IN_MEMORY_BYTES = 8 << 20


class CodeShelf:
    """Called from several threads. `near` contains the files themselves, each once, where the store is remote. Callers
    that rely on existing files, or upload some, register with `arrivals` first, so that they are not deleted
    meanwhile."""

    def __init__(
        self, store: Store, near: CodeShelf | None = None, arrivals: Arrivals | None = None, name: str = FOLDER
    ) -> None:
        self._name = name
        self._arrivals: Arrivals = near._arrivals if near else arrivals or Arrivals()
        self._near: Store = near._near if near else store
        self._far = store if near else None
        self._known: set[str] = near._known if near else set()  # local blobs that were seen; only `forget` removes some

    def register(self, snapshot: Snapshot) -> list[str]:
        """The missing files; once none is, the snapshot is stored. Existing and arriving files stay until a run refers
        to them or some time has passed."""
        files = _hashes(snapshot)
        with self._arrivals.using(self._name, snapshot.id, files):
            missing = self.lacks(files)
            if not missing:
                self.keep(snapshot)
            self._arrivals.expect(snapshot.id, files)
        return missing

    def missing(self, snapshot: Snapshot) -> list[str]:
        return self.lacks(_hashes(snapshot))

    def lacks(self, hashes: frozenset[str]) -> list[str]:
        return sorted(sha256 for sha256 in hashes - self._known if not self._has(sha256))

    def has(self, id: str) -> bool:
        """Whether nodes find it. Raises Corrupt where they would find something else."""
        try:
            if self._far:
                Bundle(self._far, id, GLANCE_BYTES)
            else:
                verified(self._near.get(layout.snapshot(id)), id)
        except Missing:
            return False
        return True

    def keep(self, snapshot: Snapshot) -> None:
        """Replaces whatever else is in its place."""
        key, data = layout.snapshot(snapshot.id), wire.dump(snapshot)
        try:
            there = self._near.get(key) == data
        except Missing:
            there = False
        if not there:
            self._near.put(key, data)
        if self._far:
            self._send(self._far, snapshot)

    def _send(self, far: Store, snapshot: Snapshot) -> None:
        with suppress(Corrupt):
            if self.has(snapshot.id):
                return
        with tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES) as spool:
            into = cast(BinaryIO, spool)
            write_bundle(snapshot, lambda sha256: open_object(self._near, layout.blob(sha256)), into)
            spool.seek(0)
            far.put(layout.code(snapshot.id), into)

    def stock(self, id: str) -> Snapshot:
        """The snapshot, with all of its files on this computer. Raises Missing, and Corrupt where it is another one."""
        with suppress(Missing):
            snapshot = verified(self._near.get(layout.snapshot(id)), id)
            if not self.missing(snapshot):
                return snapshot
        if not self._far:
            raise Missing(f"snapshot `{id}` not found in the store")
        bundle = Bundle(self._far, id)
        with self._arrivals.using(FOLDER, id, _hashes(bundle.snapshot)):
            for sha256 in self.missing(bundle.snapshot):
                content = bundle.get(layout.blob(sha256))
                if hashlib.sha256(content).hexdigest() != sha256:
                    raise Corrupt(f"the code of the snapshot {id[:12]} is damaged in the store")
                self._near.put(layout.blob(sha256), content)
                self._known.add(sha256)
            self._near.put(layout.snapshot(id), wire.dump(bundle.snapshot))
        return bundle.snapshot

    def size_bytes(self, id: str) -> int:
        """Of its files, each once. Downloads nothing."""
        with suppress(Missing):
            entries = verified(self._near.get(layout.snapshot(id)), id).entries
            return sum({entry.sha256: entry.size_bytes for entry in entries}.values())
        there = self._far.list(layout.CODE.rstrip("/")) if self._far else ()
        return sum(one.size_bytes for one in there if one.key == layout.code(id))

    def bring(self, id: str, source: CodeShelf) -> None:
        """Copies a snapshot and all of its files from another shelf. Raises Missing where that does not have it."""
        snapshot = source.stock(id)
        with self._arrivals.using(self._name, id, _hashes(snapshot)):
            for sha256 in self.missing(snapshot):
                self._near.put(layout.blob(sha256), open_object(source._near, layout.blob(sha256)))
                self._known.add(sha256)
            self.keep(snapshot)

    def take(self, stream: BinaryIO) -> int:
        """Each blob is verified before it is stored under its hash, so that hashes in the store can be trusted."""
        taken = 0
        for sha256, content in read_blobs(stream):
            with tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES) as spool:
                digest = hashlib.sha256()
                while piece := content.read(1 << 20):
                    digest.update(piece)
                    spool.write(piece)
                if digest.hexdigest() != sha256:
                    raise Corrupt(f"an uploaded file does not have the hash {sha256}", hint="submit again")
                spool.seek(0)
                self._near.put(layout.blob(sha256), cast(BinaryIO, spool))
            self._known.add(sha256)
            taken += 1
        return taken

    @property
    def store(self) -> Store:
        """The store that nodes read."""
        return self._far or self._near

    @property
    def far(self) -> bool:
        return self._far is not None

    def forget(self, blobs: Collection[str]) -> None:
        """Deletes files of deleted snapshots. From here on they are reported as missing."""
        for sha256 in blobs:
            self._known.discard(sha256)
            self._near.delete(layout.blob(sha256))

    def _has(self, sha256: str) -> bool:
        try:
            self._near.get(layout.blob(sha256), 0, 0)
        except Missing:
            return False
        self._known.add(sha256)
        return True


def _hashes(snapshot: Snapshot) -> frozenset[str]:
    return frozenset(entry.sha256 for entry in snapshot.entries if entry.kind is EntryKind.FILE)


class Shelves:
    """One shelf for each store of runs. Called from several threads."""

    def __init__(self, stores: StoreDirectory, arrivals: Arrivals) -> None:
        self._stores = stores
        self._arrivals = arrivals
        self._shelves: dict[str, tuple[Store, CodeShelf]] = {}

    def of(self, name: str) -> CodeShelf:
        store = self._stores.open(name)
        known = self._shelves.get(name)
        if known is None or known[0] is not store:  # reopened: what was known about it may be outdated
            near = None if pacing(store) is NEAR else self.of(FOLDER)
            known = self._shelves[name] = (store, CodeShelf(store, near, self._arrivals, name))
        return known[1]

    @property
    def workspace(self) -> CodeShelf:
        return self.of(self._stores.workspace.name)

    def snapshot(self, id: str) -> Snapshot:
        """The snapshot, from any store that has it; its files are copied to this computer. Raises Missing."""
        for name in self._in_order():
            with suppress(Missing):
                return self.of(name).stock(id)
        raise Missing(f"snapshot `{id}` not found in any store")

    def blob(self, sha256: str) -> bytes:
        """A file of a snapshot that was read before. Raises Missing."""
        for name in self._in_order():
            store = self._stores.open(name)
            if pacing(store) is NEAR:
                with suppress(Missing):
                    return store.get(layout.blob(sha256))
        raise Missing(f"file `{sha256}` not found in any store")

    def fill(self, store: str, snapshot: str) -> bool:
        """Whether the store has the snapshot, after copying it from another one if needed. Raises Corrupt where it has
        another one in its place, and no store has the right one."""
        shelf = self.of(store)
        damaged: Corrupt | None = None
        try:
            if shelf.has(snapshot):
                return True
        except Corrupt as error:
            damaged = error
        for name in (FOLDER, *self._in_order()):
            with suppress(StokerError):  # an unreadable store does not have it
                if self.of(name) is not shelf:
                    shelf.bring(snapshot, self.of(name))
                    return True
        if damaged:
            raise damaged
        return False

    def _in_order(self) -> list[str]:
        """The stores that may have it, the most likely one first."""
        known = self._stores.all
        return [one.name for one in sorted(known, key=lambda one: not one.workspace)]
