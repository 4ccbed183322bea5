"""Every provider, and the fake, keeps the provider contract."""

import os
import signal
import sys
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
        """Kills the agent, which carries the node's mark in its environment and is nobody's rank."""
        for process in Path("/proc").glob("[0-9]*"):
            try:
                marked = f"STOKER_NODE_KEY={key}".encode() in (process / "environ").read_bytes().split(b"\0")
                command = (process / "cmdline").read_bytes()
            except OSError:
                continue
            if marked and b".pyz" in command:
                os.kill(int(process.name), signal.SIGKILL)
