"""The provider of hosts over ssh keeps the provider contract, on real hosts: namespaces with an sshd each."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.model.node import Need, NodeRequest, Pool
from stoker.model.workspace.home import Home
from stoker.providers import Provider, Setup
from stoker.providers.ssh import SshProvider
from stoker.testing.providers import ProviderContract
from stoker.testing.ssh_hosts import HostYard, lacking, sleeping, ssh_hosts

pytestmark = pytest.mark.skipif(bool(lacking()), reason=lacking())


@pytest.fixture(scope="module")
def yard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostYard]:
    with ssh_hosts(tmp_path_factory.mktemp("yard") / "y", 3) as made, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{made.path}{os.pathsep}{os.environ['PATH']}")
        yield made


class TestSshProvider(ProviderContract):
    @pytest.fixture(autouse=True)
    def hosts(self, yard: HostYard) -> Iterator[None]:
        self.yard = yard
        self.providers: list[SshProvider] = []
        yield
        for provider in self.providers:
            provider.close()
        assert [host.nodes for host in yard.hosts] == [[], [], []], "nothing is left on the hosts"
        assert [host.agents() for host in yard.hosts] == [[], [], []]

    def make(self, folder: Path) -> Provider:
        (folder / "ssh.hosts").write_text(self.yard.text(slots=2))
        self.providers.append(SshProvider(Setup(Home(folder))))
        return self.providers[-1]

    def request(self, folder: Path, key: str) -> NodeRequest:
        return sleeping(self.providers[0], folder, key)

    def take_away(self, provider: Provider, key: str) -> None:
        """Kills the agent and the tenant that watches it."""
        host = next(one for one in self.yard.hosts if key in one.nodes)
        mine = [pid for pid in host.agents() if key.encode() in _words(pid)]
        for pid in mine:
            os.kill(pid, signal.SIGKILL)

    def test_a_gang_is_spread_over_the_hosts(self, provider: Provider, tmp_path: Path) -> None:
        for key in ("r-1", "r-1-1", "r-1-2"):
            provider.start(self.request(tmp_path, key))
        assert sorted(host.nodes for host in self.yard.hosts) == [["r-1"], ["r-1-1"], ["r-1-2"]]
        for key in ("r-1", "r-1-1", "r-1-2"):
            provider.stop(key)

    def test_a_cluster_has_the_slots_of_its_hosts_and_no_more(self, provider: Provider, tmp_path: Path) -> None:
        pool = Pool("lab", {"hosts": "lab1 slots=1\nlab2 slots=1  # the old one\n"})
        (offer,) = provider.offers(Need(pool=pool))
        assert (offer.slots, offer.place) == (2, "lab1, lab2")
        assert provider.offers(Need(pool=pool, cpus=4096)) == []


def _words(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes() + Path(f"/proc/{pid}/cwd").readlink().as_posix().encode()
    except OSError:
        return b""
