"""The code of all runs: its files on this computer, and one object with all of them in each store that is far."""

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
from stoker.server.stores.stores import Stores
from stoker.stores import Store
from stoker.stores.pacing import NEAR, pacing
from stoker.stores.transfer.reader import open_object
from stoker.stores.trees.blobstream import read_blobs
from stoker.stores.trees.bundle import GLANCE_BYTES, Bundle, write_bundle
from stoker.stores.trees.manifest import verified

_IN_MEMORY_BYTES = 8 << 20


class Shelf:
    """Called from several threads. `near` has the files themselves, each once, where the store is far. Whoever relies
    on files that are there, or brings some, says so to `arrivals` first, so that they are not removed meanwhile."""

    def __init__(
        self, store: Store, near: Shelf | None = None, arrivals: Arrivals | None = None, name: str = FOLDER
    ) -> None:
        self._name = name
        self._arrivals: Arrivals = near._arrivals if near else arrivals or Arrivals()
        self._near: Store = near._near if near else store
        self._far = store if near else None
        self._known: set[str] = near._known if near else set()  # blobs seen nearby; only `forget` takes any away

    def register(self, snapshot: Snapshot) -> list[str]:
        """What is missing of it; once nothing is, it is kept. What is there stays, and what arrives, until a run names
        it or a while has passed."""
        files = _hashes(snapshot)
        with self._arrivals.using(self._name, snapshot.id, files):
            missing = self.missing(snapshot)
            if not missing:
                self.keep(snapshot)
            self._arrivals.expect(snapshot.id, files)
        return missing

    def missing(self, snapshot: Snapshot) -> list[str]:
        return sorted(sha256 for sha256 in _hashes(snapshot) - self._known if not self._has(sha256))

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
        """Whatever lies in its place and is not it is replaced."""
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
        """The snapshot, with all of its files nearby. Raises Missing, and Corrupt where it is another one."""
        with suppress(Missing):
            snapshot = verified(self._near.get(layout.snapshot(id)), id)
            if not self.missing(snapshot):
                return snapshot
        if not self._far:
            raise Missing(f"the store has no snapshot `{id}`")
        bundle = Bundle(self._far, id)
        with self._arrivals.using(FOLDER, id, _hashes(bundle.snapshot)):
            for sha256 in self.missing(bundle.snapshot):
                content = bundle.get(layout.blob(sha256))
                if hashlib.sha256(content).hexdigest() != sha256:
                    raise Corrupt(f"the store has damaged the code of the snapshot {id[:12]}")
                self._near.put(layout.blob(sha256), content)
                self._known.add(sha256)
            self._near.put(layout.snapshot(id), wire.dump(bundle.snapshot))
        return bundle.snapshot

    def size_bytes(self, id: str) -> int:
        """Of its files, each once. Nothing is brought here to find out."""
        with suppress(Missing):
            entries = verified(self._near.get(layout.snapshot(id)), id).entries
            return sum({entry.sha256: entry.size_bytes for entry in entries}.values())
        there = self._far.list(layout.CODE.rstrip("/")) if self._far else ()
        return sum(one.size_bytes for one in there if one.key == layout.code(id))

    def bring(self, id: str, source: Shelf) -> None:
        """A snapshot and all of its files from another one. Raises Missing where that does not have it."""
        snapshot = source.stock(id)
        with self._arrivals.using(self._name, id, _hashes(snapshot)):
            for sha256 in self.missing(snapshot):
                self._near.put(layout.blob(sha256), open_object(source._near, layout.blob(sha256)))
                self._known.add(sha256)
            self.keep(snapshot)

    def take(self, stream: BinaryIO) -> int:
        """Each blob is checked before it is kept under its hash, so that a hash in the store can be trusted."""
        taken = 0
        for sha256, content in read_blobs(stream):
            with tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES) as spool:
                digest = hashlib.sha256()
                while piece := content.read(1 << 20):
                    digest.update(piece)
                    spool.write(piece)
                if digest.hexdigest() != sha256:
                    raise Corrupt(f"a file arrived that does not have the hash {sha256}", hint="submit again")
                spool.seek(0)
                self._near.put(layout.blob(sha256), cast(BinaryIO, spool))
            self._known.add(sha256)
            taken += 1
        return taken

    @property
    def store(self) -> Store:
        """What nodes read."""
        return self._far or self._near

    @property
    def far(self) -> bool:
        return self._far is not None

    def forget(self, blobs: Collection[str]) -> None:
        """Removes files of snapshots that are gone. Whoever looks for one from here on finds it missing."""
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
    """One shelf for each store that runs are kept in. Called from several threads."""

    def __init__(self, stores: Stores, arrivals: Arrivals) -> None:
        self._stores = stores
        self._arrivals = arrivals
        self._shelves: dict[str, tuple[Store, Shelf]] = {}

    def of(self, name: str) -> Shelf:
        store = self._stores.open(name)
        known = self._shelves.get(name)
        if known is None or known[0] is not store:  # opened anew: what was known of it may be of another time
            near = None if pacing(store) is NEAR else self.of(FOLDER)
            known = self._shelves[name] = (store, Shelf(store, near, self._arrivals, name))
        return known[1]

    @property
    def workspace(self) -> Shelf:
        return self.of(self._stores.workspace.name)

    def snapshot(self, id: str) -> Snapshot:
        """Wherever it is; its files are nearby then. Raises Missing."""
        for name in self._in_order():
            with suppress(Missing):
                return self.of(name).stock(id)
        raise Missing(f"no store has the snapshot `{id}`")

    def blob(self, sha256: str) -> bytes:
        """A file of a snapshot that was asked for before. Raises Missing."""
        for name in self._in_order():
            store = self._stores.open(name)
            if pacing(store) is NEAR:
                with suppress(Missing):
                    return store.get(layout.blob(sha256))
        raise Missing(f"no store has the file `{sha256}`")

    def fill(self, store: str, snapshot: str) -> bool:
        """Whether the store has the snapshot, after bringing it from another one if need be. Raises Corrupt where it
        has another one in its place, and nobody has the right one."""
        shelf = self.of(store)
        damaged: Corrupt | None = None
        try:
            if shelf.has(snapshot):
                return True
        except Corrupt as error:
            damaged = error
        for name in (FOLDER, *self._in_order()):
            with suppress(StokerError):  # a store that cannot be read now does not have it
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
