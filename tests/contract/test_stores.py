"""Every store keeps the same contract."""

from __future__ import annotations

from pathlib import Path

import pytest

from services import Azurite, S3Server
from stoker.stores import Store
from stoker.stores.folder.store import FolderStore
from stoker.stores.kinds import grant
from stoker.stores.objects.bucket import ObjectStore
from stoker.stores.opening import AccessStore, open_access, open_store
from stoker.testing.fakes import MemoryStore
from stoker.testing.stores import StoreContract


class TestFolderStore(StoreContract):
    def make(self, folder: Path) -> Store:
        return FolderStore(folder)


class TestMemoryStore(StoreContract):
    def make(self, folder: Path) -> Store:
        return MemoryStore()


class TestFolderOfANode(StoreContract):
    def make(self, folder: Path) -> Store:
        folder.mkdir(parents=True, exist_ok=True)  # its server has created it: a node does not
        return open_access(grant(folder.as_uri(), None, reads=[], writes=[""], for_s=60))


def as_another_process(store: Store) -> Store:
    if isinstance(store, AccessStore):
        return open_access(store.access)
    assert isinstance(store, ObjectStore)
    return ObjectStore(store.url, store.bucket)


class OnAzurite(StoreContract):
    steps = 8
    listed = 200  # a page has 5,000, which takes too long to fill
    again = staticmethod(as_another_process)

    @pytest.fixture(autouse=True)
    def _service(self, azurite: Azurite) -> None:
        self.azurite = azurite


class TestAzureByKey(OnAzurite):
    def make(self, folder: Path) -> Store:
        return open_store(self.azurite.new_container(), self.azurite.account_key)


class TestAzureBySas(OnAzurite):
    def make(self, folder: Path) -> Store:
        url = f"{self.azurite.new_container()}/some where/ünder"
        return open_store(url, self.azurite.sas(url))


class TestAzureOfANode(OnAzurite):
    """The standard library's client, with the token that a node gets."""

    def make(self, folder: Path) -> Store:
        url = f"{self.azurite.new_container()}/deep/er"
        return open_access(grant(url, self.azurite.account_key, reads=[], writes=[""], for_s=600))


class OnS3(StoreContract):
    steps = 8
    again = staticmethod(as_another_process)

    @pytest.fixture(autouse=True)
    def _service(self, s3_server: S3Server) -> None:
        self.s3 = s3_server


class TestS3(OnS3):
    def make(self, folder: Path) -> Store:
        return open_store(self.s3.new_bucket(), self.s3.key)


class TestS3OfANode(OnS3):
    """The standard library's client, with the keys that a node gets."""

    def make(self, folder: Path) -> Store:
        url = self.s3.new_bucket().replace("?", "/deep/er?")
        return open_access(grant(url, self.s3.key, reads=[], writes=[""], for_s=900))
