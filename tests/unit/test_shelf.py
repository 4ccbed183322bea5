"""The code of runs on its way into a store."""

from __future__ import annotations

import hashlib
import io
import threading
from typing import BinaryIO

from stoker.model import layout
from stoker.server.shelf import Shelf
from stoker.stores.blobstream import Item, blob_stream
from stoker.testing.memory_store import MemoryStore


class Reluctant(MemoryStore):
    """A far store that looks at what it is given only when everything has arrived."""

    def __init__(self) -> None:
        super().__init__("http://127.0.0.1/far")
        self.arrived = threading.Event()

    def put(self, key: str, data: bytes | BinaryIO, *, only_new: bool = False) -> None:
        self.arrived.wait(0.2)
        super().put(key, data, only_new=only_new)


def item(content: bytes) -> Item:
    return hashlib.sha256(content).hexdigest(), len(content), lambda: io.BytesIO(content)


def test_files_that_a_slow_store_has_not_read_yet_are_kept_for_it() -> None:
    store = Reluctant()
    files = [b"one", b"two", b"three"]
    assert Shelf(store).take(io.BytesIO(b"".join(blob_stream(map(item, files))))) == 3
    assert [store.get(layout.blob(hashlib.sha256(one).hexdigest())) for one in files] == files
