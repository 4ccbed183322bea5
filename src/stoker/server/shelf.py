"""The code of all runs in the store: which files are there, and room for those that are not."""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections.abc import Collection
from contextlib import suppress
from typing import BinaryIO

from stoker.errors import AlreadyThere, Corrupt, Missing
from stoker.model import layout, wire
from stoker.model.snapshot import EntryKind, Snapshot
from stoker.stores import Store
from stoker.stores.blobstream import read_blobs

_IN_MEMORY_BYTES = 8 << 20
_YOUNG_S = 3600.0  # a blob this young may belong to a submission that is just arriving


class Shelf:
    """Called from several threads."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: set[str] = set()  # blobs seen in the store; only `tidy` takes any away

    def missing(self, snapshot: Snapshot) -> list[str]:
        hashes = {entry.sha256 for entry in snapshot.entries if entry.kind is EntryKind.FILE}
        return sorted(sha256 for sha256 in hashes - self._known if not self._has(sha256))

    def keep(self, snapshot: Snapshot) -> None:
        with suppress(AlreadyThere):
            self._store.put(layout.snapshot(snapshot.id), wire.dump(snapshot), only_new=True)

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
                self._store.put(layout.blob(sha256), spool)  # type: ignore[arg-type]  # it reads like any file
            self._known.add(sha256)
            taken += 1
        return taken

    def tidy(self, in_use: Collection[str]) -> None:
        """Removes snapshots that no run names, and blobs that no snapshot names."""
        old = time.time() - _YOUNG_S
        needed: set[str] = set()
        for stored in list(self._store.list("snapshots")):
            id = stored.key.removeprefix("snapshots/").removesuffix(".json")
            if id not in in_use and stored.changed_at < old:
                self._store.delete(stored.key)
                continue
            snapshot = wire.load(Snapshot, self._store.get(stored.key))
            needed |= {entry.sha256 for entry in snapshot.entries}
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
