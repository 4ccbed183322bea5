"""Every provider, and the fake, keeps the provider contract."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from stoker.model import wire
from stoker.model.job.job import Job
from stoker.model.node import NodeRequest, NodeState
from stoker.model.orders import Orders
from stoker.model.snapshot import Snapshot
from stoker.model.workspace import layout
from stoker.model.workspace.home import Home
from stoker.providers import Provider, Setup
from stoker.providers.local import LocalProvider
from stoker.stores.folder.store import FolderStore
from stoker.testing.fakes import FakeProvider, RestoringFakeProvider
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


class TestRestoringFakeProvider(TestFakeProvider):
    def make(self, folder: Path) -> Provider:
        return RestoringFakeProvider(self.nodes)

    def test_a_restored_node_is_made_from_the_same_request(self, tmp_path: Path) -> None:
        provider, request = RestoringFakeProvider(self.nodes), self.request(tmp_path, "r-1")
        provider.start(request)
        provider.kill("r-1")
        assert [one.state for _ in range(2) for one in provider.look()] == [NodeState.GONE, NodeState.UP]
        assert provider.started == [request, request]
        provider.stop("r-1")
        assert provider.look() == []


class TestLocalProvider(ProviderContract):
    def make(self, folder: Path) -> Provider:
        self.folder = folder
        return LocalProvider(Setup(Home(folder)))

    def request(self, folder: Path, key: str) -> NodeRequest:
        store = FolderStore(Home(folder).store)
        empty = Snapshot(())
        store.put(layout.snapshot(empty.id), wire.dump(empty))
        job = Job(name="sleeper", run="sleep 60")
        orders = Orders(key, "sleeper-1", 1, 0, key, job, empty.id, sys.executable)
        where = layout.orders(key, 1)
        store.put(where, wire.dump(orders))
        return NodeRequest(key, where, store.url)

    def take_away(self, provider: Provider, key: str) -> None:
        """Kills the agent, as soon as it has written its name."""
        errand = self.folder / "nodes" / key / "errand.json"
        deadline = time.monotonic() + 10
        while not errand.exists() and time.monotonic() < deadline:
            time.sleep(0.005)
        os.kill(int(json.loads(errand.read_bytes())["agent"]), signal.SIGKILL)

    @pytest.mark.parametrize("began", [(), ("lock",)], ids=["a folder", "a lock that nobody holds"])
    def test_one_that_a_killed_server_began_is_not_lost_and_can_be_asked_for_again(
        self, tmp_path: Path, began: tuple[str, ...]
    ) -> None:
        provider, request = self.make(tmp_path), self.request(tmp_path, "r-1")
        folder = tmp_path / "nodes" / "r-1"
        folder.mkdir(parents=True)
        for name in began:
            (folder / name).touch()
        assert [sight.unfinished for sight in provider.look()] == [True]
        provider.start(request)
        assert [sight.state for sight in provider.look()] == [NodeState.UP]
        self.take_away(provider, "r-1")
        deadline = time.monotonic() + 10
        while provider.look()[0].state is NodeState.UP and time.monotonic() < deadline:
            time.sleep(0.005)
        assert [(sight.state, sight.unfinished) for sight in provider.look()] == [(NodeState.GONE, False)]
        assert [sight.unfinished for sight in self.make(tmp_path).look()] == [False], "nor for the next server"
        provider.stop("r-1")
