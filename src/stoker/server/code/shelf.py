"""The code of all runs: its files on this computer, and one object with all of them in each remote store."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Collection
from contextlib import suppress
from typing import BinaryIO, cast

from stoker.errors import Corrupt, Missing, StokerError
from stoker.model import wire
from stoker.model.snapshot import EntryKind, Snapshot
from stoker.model.workspace import layout
from stoker.model.workspace.store import FOLDER
from stoker.server.code.arrivals import Arrivals
from stoker.server.stores.stores import StoreDirectory
from stoker.stores import Store
from stoker.stores.pacing import NEAR, pacing
from stoker.stores.transfer.reader import open_object
from stoker.stores.trees.blobstream import read_blobs
from stoker.stores.trees.bundle import GLANCE_BYTES, Bundle, write_bundle
from stoker.stores.trees.manifest import verified

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
        """From any store; its files are then on this computer. Raises Missing."""
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
        """The most likely first."""
        known = self._stores.all
        return [one.name for one in sorted(known, key=lambda one: not one.workspace)]
