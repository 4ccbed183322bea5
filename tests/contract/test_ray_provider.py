"""The provider of Ray clusters keeps the provider contract, on a real cluster of three nodes."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.errors import JobInvalid, ProviderUnavailable
from stoker.model import wire
from stoker.model.job.job import Job
from stoker.model.node import Need, NodeRequest, NodeState
from stoker.model.orders import Orders
from stoker.model.snapshot import Snapshot
from stoker.model.workspace import layout
from stoker.model.workspace.home import Home
from stoker.providers import Provider, Setup
from stoker.providers.ray import RayProvider
from stoker.stores.folder.store import FolderStore
from stoker.testing.providers import ProviderContract
from stoker.testing.ray_cluster import RayYard, ray_cluster

# A long proof: on a busy computer Ray takes minutes to start. Every check has `test_same_everywhere.py`.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
RAY = Path(__file__).parents[2] / ".venv-ray" / "bin" / "ray"
GANG = ("g-1", "g-1-1", "g-1-2")
PATIENCE_S = 120.0  # a worker of Ray takes seconds to start, and a busy computer has several


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayYard]:
    with ray_cluster(RAY) as made, pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ADDRESS", made.address)
        yield made


class TestRayProvider(ProviderContract):
    @pytest.fixture(autouse=True)
    def clean(self, cluster: RayYard) -> Iterator[None]:
        self.cluster = cluster
        yield
        assert not list(cluster.home.glob(".stoker-node/*/nodes/*")), "nothing is left of a node"

    def make(self, folder: Path) -> Provider:
        return RayProvider(Setup(Home(folder)))

    def request(self, folder: Path, key: str) -> NodeRequest:
        store, empty = FolderStore(Home(folder).store), Snapshot(())
        store.put(layout.snapshot(empty.id), wire.dump(empty))
        orders = Orders(key, "sleeper-1", 1, 0, key, Job(name="sleeper", run="sleep 600"), empty.id, sys.executable)
        where = layout.orders(key, 1)
        store.put(where, wire.dump(orders))
        return NodeRequest(key, where, store.url, need=Need(cpus=1), together=GANG if key in GANG else ())

    def take_away(self, provider: Provider, key: str) -> None:
        """Kills the agent, as soon as there is one."""
        deadline = time.monotonic() + PATIENCE_S
        while not (mine := _agents(key)) and time.monotonic() < deadline:
            time.sleep(0.1)
        for pid in mine:
            os.kill(pid, signal.SIGKILL)

    def test_a_gang_is_one_job_and_a_lost_node_of_the_cluster_is_one_lost_node(
        self, provider: Provider, tmp_path: Path
    ) -> None:
        for key in GANG:
            provider.start(self.request(tmp_path, key))
        for key in GANG:
            self.becomes(provider, key, NodeState.UP)
        self.cluster.kill_node(2)
        deadline = time.monotonic() + PATIENCE_S
        while len(self.gone(provider)) != 1:
            assert time.monotonic() < deadline, provider.look()
            time.sleep(0.2)
        for key in GANG:
            provider.stop(key)
        assert provider.look() == []
        self.cluster.start_node(2)
        self.cluster.await_nodes(3)
        for path in self.cluster.home.glob(".stoker-node/*/nodes/*"):  # of the guard that was killed with its node
            assert not _agents(path.name)

    def test_more_than_the_cluster_has_is_refused_with_the_most(self, provider: Provider) -> None:
        for need, field in ((Need(cpus=3), "cpus"), (Need(gpus=1), "gpus"), (Need(cpus=2, nodes=4), "nodes")):
            with pytest.raises(JobInvalid) as refused:
                provider.offers(need)
            assert [one.field for one in refused.value.problems] == [field]

    def test_a_head_that_restarts_ends_its_nodes(self, provider: Provider, tmp_path: Path) -> None:
        """Without external storage, Ray forgets its jobs."""
        provider.start(self.request(tmp_path, "r-1"))
        self.becomes(provider, "r-1", NodeState.UP)
        for number in (0, 1, 2):
            self.cluster.kill_node(number)
        with pytest.raises(ProviderUnavailable):
            provider.look()
        self.cluster.start_head()
        for number in (1, 2):
            self.cluster.await_nodes(number)
            self.cluster.start_node(number)
        self.cluster.await_nodes(3)
        self.becomes(provider, "r-1", NodeState.GONE)
        provider.stop("r-1")
        assert provider.look() == []
        deadline = time.monotonic() + PATIENCE_S
        while _agents("r-1") and time.monotonic() < deadline:
            time.sleep(0.2)
        assert _agents("r-1") == []

    def becomes(self, provider: Provider, key: str, state: NodeState) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while {one.key: one.state for one in provider.look()}.get(key) is not state:
            assert time.monotonic() < deadline, provider.look()
            time.sleep(0.2)

    def gone(self, provider: Provider) -> list[str]:
        return [one.key for one in provider.look() if one.state is NodeState.GONE]


def _agents(key: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"run" in words and any(word.endswith(f"/nodes/{key}".encode()) for word in words):
            found.append(int(path.parent.name))
    return found
