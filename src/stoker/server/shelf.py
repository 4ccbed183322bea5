"""The code of all runs in the store: which files are there, and room for those that are not."""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections.abc import Collection
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import Any, BinaryIO

from stoker.errors import AlreadyThere, Corrupt, Missing
from stoker.model import layout, wire
from stoker.model.snapshot import EntryKind, Snapshot
from stoker.server.stores import Stores
from stoker.stores import Store
from stoker.stores.blobstream import read_blobs
from stoker.stores.pacing import NEAR, pacing
from stoker.stores.reader import open_object

_IN_MEMORY_BYTES = 8 << 20
_AT_ONCE = 8
_ASK_EACH = 20  # files that are asked for one by one; with more of them, one listing of a far store is less
_YOUNG_S = 3600.0  # a blob this young may belong to a submission that is just arriving


class Shelf:
    """Called from several threads."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: set[str] = set()  # blobs seen in the store; only `tidy` takes any away

    def missing(self, snapshot: Snapshot) -> list[str]:
        hashes = {entry.sha256 for entry in snapshot.entries if entry.kind is EntryKind.FILE}
        unknown = hashes - self._known
        if len(unknown) > _ASK_EACH and pacing(self._store) is not NEAR:
            self._known |= {stored.key.rsplit("/", 1)[-1] for stored in self._store.list("blobs")}
            return sorted(hashes - self._known)
        return sorted(sha256 for sha256 in unknown if not self._has(sha256))

    def has(self, id: str) -> bool:
        try:
            self._store.get(layout.snapshot(id), 0, 1)
        except Missing:
            return False
        return True

    def bring(self, id: str, source: Store) -> None:
        """A snapshot and all of its files from another store. Raises Missing where that does not have it."""
        snapshot = wire.load(Snapshot, source.get(layout.snapshot(id)))
        for sha256 in self.missing(snapshot):
            self._store.put(layout.blob(sha256), open_object(source, layout.blob(sha256)))
            self._known.add(sha256)
        self.keep(snapshot)

    def keep(self, snapshot: Snapshot) -> None:
        with suppress(AlreadyThere):
            self._store.put(layout.snapshot(snapshot.id), wire.dump(snapshot), only_new=True)

    def take(self, stream: BinaryIO) -> int:
        """Each blob is checked before it is kept under its hash, so that a hash in the store can be trusted."""
        taken: list[Future[None]] = []
        # In this order: no spool may be closed before the last thread is done with it.
        with ExitStack() as spools, ThreadPoolExecutor(_AT_ONCE, "shelf") as threads:
            for sha256, content in read_blobs(stream):
                spool = spools.enter_context(tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES))
                digest = hashlib.sha256()
                while piece := content.read(1 << 20):
                    digest.update(piece)
                    spool.write(piece)
                if digest.hexdigest() != sha256:
                    raise Corrupt(f"a file arrived that does not have the hash {sha256}", hint="submit again")
                spool.seek(0)
                taken.append(self._start(threads, sha256, spool))
                if len(taken) >= _AT_ONCE:
                    taken[-_AT_ONCE].result()  # as many are held in memory as are on their way
        for one in taken:
            one.result()
        return len(taken)

    def _start(self, threads: ThreadPoolExecutor, sha256: str, spool: Any) -> Future[None]:
        """Where the store is a disk, threads would only get in each other's way."""
        if pacing(self._store) is not NEAR:
            return threads.submit(self._put, sha256, spool)
        done: Future[None] = Future()
        self._put(sha256, spool)
        done.set_result(None)
        return done

    def _put(self, sha256: str, spool: Any) -> None:
        with spool:
            self._store.put(layout.blob(sha256), spool)
        self._known.add(sha256)

    def tidy(self, in_use: Collection[str]) -> None:
        """Removes snapshots that no run names, and blobs that no snapshot names."""
        old = time.time() - _YOUNG_S
        snapshots = list(self._store.list("snapshots"))
        unused = [one.key for one in snapshots if _id(one.key) not in in_use and one.changed_at < old]
        if not unused and pacing(self._store) is not NEAR:
            return  # to look for blobs that nobody names, every snapshot would have to be read
        for key in unused:
            self._store.delete(key)
        needed: set[str] = set()
        kept = [one.key for one in snapshots if one.key not in unused]
        with ThreadPoolExecutor(1 if pacing(self._store) is NEAR else _AT_ONCE, "shelf") as threads:
            for data in threads.map(self._store.get, kept):
                needed |= {entry.sha256 for entry in wire.load(Snapshot, data).entries}
        for stored in list(self._store.list("blobs")):
            sha256 = stored.key.rsplit("/", 1)[-1]
            if sha256 not in needed and stored.changed_at < old:
                self._known.discard(sha256)
                self._store.delete(stored.key)

    def _has(self, sha256: str) -> bool:
        try:
            self._store.get(layout.blob(sha256), 0, 0)
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
            known = self._shelves[name] = (store, Shelf(store))
        return known[1]

    @property
    def workspace(self) -> Shelf:
        return self.of(self._stores.workspace.name)

    def find(self, key: str) -> bytes:
        """An object of a snapshot, wherever it is. Raises Missing."""
        for name in self._in_order():
            with suppress(Missing):
                return self._stores.open(name).get(key)
        raise Missing(f"no store has `{key}`")

    def fill(self, store: str, snapshot: str) -> bool:
        """Whether the store has the snapshot, after bringing it from another one if need be."""
        shelf = self.of(store)
        if shelf.has(snapshot):
            return True
        for name in self._in_order():
            if name != store:
                with suppress(Missing):
                    shelf.bring(snapshot, self._stores.open(name))
                    return True
        return False

    def _in_order(self) -> list[str]:
        """The most likely first."""
        known = self._stores.all
        return [one.name for one in sorted(known, key=lambda one: not one.workspace)]
