"""Every provider, and the fake, keeps the provider contract."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from stoker.model import layout, wire
from stoker.model.home import Home
from stoker.model.job import Job
from stoker.model.node import NodeRequest, NodeState
from stoker.model.orders import Orders
from stoker.model.snapshot import Snapshot
from stoker.providers import Provider, Setup
from stoker.providers.local import LocalProvider
from stoker.stores.folder import FolderStore
from stoker.testing.fake_provider import FakeProvider
from stoker.testing.providers import ProviderContract


class TestFakeProvider(ProviderContract):
    @pytest.fixture(autouse=True)
    def cloud(self) -> None:
        self.nodes: dict[str, NodeState] = {}

    def make(self, folder: Path) -> Provider:
        return FakeProvider(self.nodes)

    def request(self, folder: Path, key: str) -> NodeRequest:
        return NodeRequest(key, "orders.json", "memory:")

    def take_away(self, provider: Provider, key: str) -> None:
        assert isinstance(provider, FakeProvider)
        provider.kill(key)


class TestLocalProvider(ProviderContract):
    def make(self, folder: Path) -> Provider:
        self.folder = folder
        return LocalProvider(Setup(Home(folder)))

    def request(self, folder: Path, key: str) -> NodeRequest:
        store = FolderStore(Home(folder).store)
        empty = Snapshot(())
        store.put(layout.snapshot(empty.id), wire.dump(empty))
        job = Job(name="sleeper", run="sleep 60")
        orders = Orders("r", "sleeper-1", 1, 0, key, job, empty.id, sys.executable)
        where = layout.orders(key, 1)
        store.put(where, wire.dump(orders))
        return NodeRequest(key, where, store.url)

    def take_away(self, provider: Provider, key: str) -> None:
        """Kills the agent, as soon as it has said who it is."""
        errand = self.folder / "nodes" / key / "errand.json"
        deadline = time.monotonic() + 10
        while not errand.exists() and time.monotonic() < deadline:
            time.sleep(0.005)
        os.kill(int(json.loads(errand.read_bytes())["agent"]), signal.SIGKILL)
