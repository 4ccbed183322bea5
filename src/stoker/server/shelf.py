"""The code of all runs: its files on this computer, and one object with all of them in each store that is far."""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections.abc import Collection
from contextlib import suppress
from typing import BinaryIO, cast

from stoker.errors import Corrupt, Missing, StokerError
from stoker.model import layout, wire
from stoker.model.snapshot import EntryKind, Snapshot
from stoker.model.store import FOLDER
from stoker.server.stores import Stores
from stoker.stores import Store
from stoker.stores.blobstream import read_blobs
from stoker.stores.bundle import GLANCE_BYTES, Bundle, write_bundle
from stoker.stores.manifest import verified
from stoker.stores.pacing import NEAR, pacing
from stoker.stores.reader import open_object

_IN_MEMORY_BYTES = 8 << 20
_YOUNG_S = 3600.0  # a blob this young may belong to a submission that is just arriving


class Shelf:
    """Called from several threads. `near` has the files themselves, each once, where the store is far."""

    def __init__(self, store: Store, near: Shelf | None = None) -> None:
        self._near: Store = near._near if near else store
        self._far = store if near else None
        self._known: set[str] = near._known if near else set()  # blobs seen nearby; only `tidy` takes any away

    def missing(self, snapshot: Snapshot) -> list[str]:
        hashes = {entry.sha256 for entry in snapshot.entries if entry.kind is EntryKind.FILE}
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
        for sha256 in self.missing(bundle.snapshot):
            content = bundle.get(layout.blob(sha256))
            if hashlib.sha256(content).hexdigest() != sha256:
                raise Corrupt(f"the store has damaged the code of the snapshot {id[:12]}")
            self._near.put(layout.blob(sha256), content)
            self._known.add(sha256)
        self._near.put(layout.snapshot(id), wire.dump(bundle.snapshot))
        return bundle.snapshot

    def bring(self, id: str, source: Shelf) -> None:
        """A snapshot and all of its files from another one. Raises Missing where that does not have it."""
        snapshot = source.stock(id)
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

    def tidy(self, in_use: Collection[str], gone: str) -> None:
        """Removes snapshots that no run names, and blobs that no snapshot names. A store that is far may hold code of
        other servers: there, only the snapshot `gone` is removed."""
        if self._far and gone not in in_use:
            self._far.delete(layout.code(gone))
        old = time.time() - _YOUNG_S
        snapshots = list(self._near.list("snapshots"))
        unused = {one.key for one in snapshots if _id(one.key) not in in_use and one.changed_at < old}
        for key in unused:
            self._near.delete(key)
        needed: set[str] = set()
        for one in snapshots:
            if one.key not in unused:
                needed |= {entry.sha256 for entry in wire.load(Snapshot, self._near.get(one.key)).entries}
        for stored in list(self._near.list("blobs")):
            sha256 = stored.key.rsplit("/", 1)[-1]
            if sha256 not in needed and stored.changed_at < old:
                self._known.discard(sha256)
                self._near.delete(stored.key)

    def _has(self, sha256: str) -> bool:
        try:
            self._near.get(layout.blob(sha256), 0, 0)
        except Missing:
            return False
        self._known.add(sha256)
        return True


def _id(key: str) -> str:
    return key.removeprefix("snapshots/").removesuffix(".json")


class Shelves:
    """One shelf for each store that runs are kept in. Called from several threads."""

    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        self._shelves: dict[str, tuple[Store, Shelf]] = {}

    def of(self, name: str) -> Shelf:
        store = self._stores.open(name)
        known = self._shelves.get(name)
        if known is None or known[0] is not store:  # opened anew: what was known of it may be of another time
            near = None if pacing(store) is NEAR else self.of(FOLDER)
            known = self._shelves[name] = (store, Shelf(store, near))
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
