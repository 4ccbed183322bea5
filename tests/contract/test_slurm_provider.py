"""The provider of Slurm clusters keeps the provider contract, on a real cluster: a controller and three nodes."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from stoker.errors import JobInvalid, NotAllowed, ProviderUnavailable
from stoker.model import wire
from stoker.model.job.job import Job
from stoker.model.node import Need, NodeRequest, NodeState, Pool
from stoker.model.orders import Orders
from stoker.model.snapshot import Snapshot
from stoker.model.workspace import layout
from stoker.model.workspace.home import Home
from stoker.providers import Provider, Setup
from stoker.providers.slurm import SlurmProvider
from stoker.stores.folder.store import FolderStore
from stoker.testing.providers import ProviderContract
from stoker.testing.slurm_cluster import ACCOUNT, SlurmCluster, slurm_cluster

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif(os.geteuid() != 0, reason="Slurm starts the jobs of users: it requires root"),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    with slurm_cluster(tmp_path_factory.mktemp("slurm")) as made, pytest.MonkeyPatch.context() as patch:
        for name, value in made.variables.items():
            patch.setenv(name, value)
        yield made


class TestSlurmProvider(ProviderContract):
    @pytest.fixture(autouse=True)
    def clean(self, cluster: SlurmCluster) -> Iterator[None]:
        self.cluster = cluster
        yield
        assert cluster.jobs() == [], "nothing is left in the queue"

    def make(self, folder: Path) -> Provider:
        return SlurmProvider(Setup(Home(folder)))

    def request(self, folder: Path, key: str) -> NodeRequest:
        store, empty = FolderStore(Home(folder).store), Snapshot(())
        store.put(layout.snapshot(empty.id), wire.dump(empty))
        orders = Orders(key, "sleeper-1", 1, 0, key, Job(name="sleeper", run="sleep 60"), empty.id, sys.executable)
        where = layout.orders(key, 1)
        store.put(where, wire.dump(orders))
        together = ("g-1", "g-1-1", "g-1-2") if key.startswith("g-1") else ()
        return NodeRequest(key, where, store.url, need=Need(cpus=1), together=together)

    def take_away(self, provider: Provider, key: str) -> None:
        """Kills the agent, as soon as there is one."""
        deadline = time.monotonic() + 20
        while not (mine := _agents(key)) and time.monotonic() < deadline:
            time.sleep(0.02)
        for pid in mine:
            os.kill(pid, signal.SIGKILL)

    def test_a_gang_is_one_allocation(self, provider: Provider, tmp_path: Path) -> None:
        for key in ("g-1", "g-1-1", "g-1-2"):
            assert self.cluster.jobs() == []
            provider.start(self.request(tmp_path, key))
        assert len(self.cluster.jobs()) == 1
        for key in ("g-1", "g-1-1", "g-1-2"):
            provider.stop(key)

    def test_a_job_that_waits_says_why_in_words_of_slurm(self, provider: Provider, tmp_path: Path) -> None:
        request = replace(self.request(tmp_path, "r-1"), need=Need(memory_gb=1.9, pool=Pool("hpc", {"time": "5m"})))
        for number in range(1, 5):
            provider.start(replace(request, key=f"r-{number}"))
        self._becomes(provider, "r-1", NodeState.UP)
        last = self._seen(provider, "r-4")
        assert last.state is NodeState.STARTING
        assert "Slurm job" in last.waits
        for number in range(1, 5):
            provider.stop(f"r-{number}")

    def test_an_unknown_partition_is_refused_with_those_that_exist(self, provider: Provider) -> None:
        with pytest.raises(JobInvalid) as refused:
            provider.offers(Need(pool=Pool("hpc", {"partition": "mian"})))
        (problem,) = refused.value.problems
        assert (problem.found, problem.nearest) == ("`mian`", "main")
        assert "`urgent`" in problem.expected
        assert provider.offers(Need(size="mian")) == []
        assert [one.size for one in provider.offers(Need(size="main"))] == ["main"]

    def test_a_controller_that_is_away_loses_nothing_and_starts_nothing_twice(
        self, provider: Provider, tmp_path: Path
    ) -> None:
        provider.start(self.request(tmp_path, "r-1"))
        self.cluster.stop_controller()
        with pytest.raises(ProviderUnavailable):
            provider.look()
        with pytest.raises(ProviderUnavailable):
            provider.start(self.request(tmp_path, "r-2"))
        assert self.make(tmp_path)
        self.cluster.start_controller(clean=False)
        for _ in range(2):
            provider.start(self.request(tmp_path, "r-2"))
        self._becomes(provider, "r-1", NodeState.UP)
        self._becomes(provider, "r-2", NodeState.UP)
        assert len(self.cluster.jobs()) == 2
        for key in ("r-1", "r-2"):
            provider.stop(key)

    def test_an_allocation_that_starts_when_nobody_needs_it_ends_at_once(
        self, provider: Provider, tmp_path: Path
    ) -> None:
        """As one that reached the controller before the server died, and that another server submitted again."""
        provider.start(self.request(tmp_path, "r-1"))
        script = self.cluster.command("scontrol", "write", "batch_script", self.cluster.jobs()[0], "-")
        provider.stop("r-1")
        (tmp_path / "again.sh").write_text(script)
        job = self.cluster.command("sbatch", "--parsable", "--output=/dev/null", str(tmp_path / "again.sh")).strip()
        deadline = time.monotonic() + 20
        while job in self.cluster.jobs() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert job not in self.cluster.jobs()
        assert _agents("r-1") == []

    def test_slurm_keeps_no_secret_of_a_job(self, provider: Provider, tmp_path: Path) -> None:
        provider.start(replace(self.request(tmp_path, "r-1"), secrets={"HF_TOKEN": "hidden-17"}))
        self._becomes(provider, "r-1", NodeState.UP)
        kept = [path for path in self.cluster.folder.rglob("*") if path.is_file() and b"hidden-17" in path.read_bytes()]
        assert kept == []
        deadline = time.monotonic() + 20
        while not (agents := _agents("r-1")) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert b"HF_TOKEN=hidden-17" in Path(f"/proc/{agents[0]}/environ").read_bytes().split(b"\0")
        assert b"hidden-17" not in Path(f"/proc/{agents[0]}/cmdline").read_bytes()
        assert not list(tmp_path.rglob("given"))
        provider.stop("r-1")

    def test_a_job_that_an_administrator_requeues_or_whose_node_fails_is_told_as_that(
        self, provider: Provider, tmp_path: Path
    ) -> None:
        for key in ("r-1", "r-2"):
            provider.start(self.request(tmp_path, key))
            self._becomes(provider, key, NodeState.UP)
        jobs = self.cluster.command("squeue", "--noheader", "--sort=i", "--format=%A|%N").split()
        requeued, failed = (row.partition("|")[0] for row in jobs)
        while not list(tmp_path.rglob("claim"))[1:]:
            time.sleep(0.05)
        self.cluster.command("scontrol", "update", f"jobid={requeued}", "requeue=1")
        self.cluster.command("scontrol", "requeue", requeued)
        self._becomes(provider, "r-1", NodeState.GONE)
        assert "was requeued by an administrator" in self._seen(provider, "r-1").reason
        node = self.cluster.command("squeue", "--noheader", f"--jobs={failed}", "--format=%N").strip()
        self.cluster.command("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
        self._becomes(provider, "r-2", NodeState.GONE)
        assert "ended as NODE_FAIL (NodeDown): one of its nodes failed" in self._seen(provider, "r-2").reason
        for key in ("r-1", "r-2"):
            provider.stop(key)
        with suppress(RuntimeError):  # it may have come back by itself
            self.cluster.command("scontrol", "update", f"nodename={node}", "state=resume")


@pytest.fixture
def accounted(tmp_path: Path) -> Iterator[SlurmCluster]:
    """With accounts, and a controller that forgets an ended job after two seconds."""
    made = SlurmCluster(tmp_path / "slurm", nodes=("n1",), accounts=True, job_age=2)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in made.variables.items():
            patch.setenv(name, value)
        try:
            made.boot()
            yield made
        finally:
            made.close()


def test_how_a_forgotten_job_ended_is_in_the_accounts(accounted: SlurmCluster, tmp_path: Path) -> None:
    contract = TestSlurmProvider()
    provider = contract.make(tmp_path)
    provider.start(contract.request(tmp_path, "r-1"))
    contract._becomes(provider, "r-1", NodeState.UP)
    accounted.command("scancel", accounted.jobs()[0])
    deadline = time.monotonic() + 60
    while accounted.command("squeue", "--noheader", "--states=all").strip() and time.monotonic() < deadline:
        time.sleep(0.2)
    contract._becomes(provider, "r-1", NodeState.GONE)
    assert "ended as CANCELLED" in contract._seen(provider, "r-1").reason
    provider.stop("r-1")
    assert provider.look() == []


@pytest.mark.parametrize("settings", [{"account": "nobody"}, {"qos": "fast"}])
def test_an_account_or_qos_that_slurm_refuses_is_told_in_its_words_and_leaves_nothing(
    accounted: SlurmCluster, tmp_path: Path, settings: dict[str, str]
) -> None:
    contract = TestSlurmProvider()
    provider = contract.make(tmp_path)
    request = contract.request(tmp_path, "r-1")
    with pytest.raises(NotAllowed, match=f"Invalid {next(iter(settings))}"):
        provider.start(replace(request, need=Need(cpus=1, pool=Pool("hpc", settings))))
    assert (provider.look(), accounted.jobs()) == ([], [])
    provider.start(replace(request, need=Need(cpus=1, pool=Pool("hpc", {"account": ACCOUNT}))))
    contract._becomes(provider, "r-1", NodeState.UP)
    provider.stop("r-1")


def test_hundreds_of_nodes_are_submitted_and_looked_at_at_once(cluster: SlurmCluster, tmp_path: Path) -> None:
    """One request to the controller shows all of them."""
    provider, contract = SlurmProvider(Setup(Home(tmp_path))), TestSlurmProvider()
    held = cluster.command("sbatch", "--parsable", "--exclusive", "--nodes=3", "--output=/dev/null", "--wrap=sleep 900")
    request = contract.request(tmp_path, "r-0")
    keys = [f"r-{number}" for number in range(120)]
    with ThreadPoolExecutor(24) as pool:
        list(pool.map(lambda key: provider.start(replace(request, key=key)), keys))
    asked: list[Sequence[str]] = []
    with pytest.MonkeyPatch.context() as patch:
        run = provider._controller.run

        def noted(words: Sequence[str], given: str = "") -> str:
            asked.append(words)
            return run(words, given)

        patch.setattr(provider._controller, "run", noted)
        seen = provider.look()
    assert [one.key for one in seen] == sorted(keys)
    assert {one.state for one in seen} == {NodeState.STARTING}
    assert [words[0] for words in asked if words[0] != "id"] == ["squeue"]
    with ThreadPoolExecutor(24) as pool:
        list(pool.map(provider.stop, keys))
    assert provider.look() == []
    cluster.command("scancel", held.strip())


def _agents(key: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"run" in words and any(word.endswith(f"/{key}".encode()) for word in words) and b"python" in words[0]:
            found.append(int(path.parent.name))
    return found
