"""Every store keeps the same contract."""

from __future__ import annotations

from pathlib import Path

from stoker.stores import Store
from stoker.stores.folder import FolderStore
from stoker.testing.memory_store import MemoryStore
from stoker.testing.stores import StoreContract


class TestFolderStore(StoreContract):
    def make(self, folder: Path) -> Store:
        return FolderStore(folder)


class TestMemoryStore(StoreContract):
    def make(self, folder: Path) -> Store:
        return MemoryStore()
