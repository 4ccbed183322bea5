"""A store of the server, as a node sees it through a tunnel: the contract of stores, and who may do what."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from services import Azurite
from stoker.errors import Missing, StoreDenied, StoreUnavailable
from stoker.providers.ssh.tunnel import TunnelService, TunnelTokens
from stoker.stores import Store
from stoker.stores.access import Access
from stoker.stores.kinds import grant
from stoker.stores.opening import AccessStore, open_access
from stoker.stores.tunnel.kind import socket_of
from stoker.testing.stores import StoreContract


class Tunnel:
    """The service, where agents of this account would look for it."""

    def __init__(self, home: Path) -> None:
        self.tokens = TunnelTokens(b"secret of the server", "server")
        self.given_up: set[str] = set()
        self.home = home
        self.open()

    def open(self) -> None:
        place = self.home / "d"
        self.service = TunnelService(place, self.tokens, lambda key: key not in self.given_up)
        link = socket_of(self.home, "server")
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(place)

    def access(self, folder: Path, reads: list[str], writes: list[str]) -> Access:
        folder.mkdir(parents=True, exist_ok=True)
        return self.tokens.carried("r-1", grant(folder.as_uri(), None, reads=reads, writes=writes, for_s=60))

    def store(self, folder: Path, reads: list[str], writes: list[str]) -> AccessStore:
        return open_access(self.access(folder, reads, writes))


@pytest.fixture
def tunnel(monkeypatch: pytest.MonkeyPatch) -> Iterator[Tunnel]:
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        monkeypatch.setenv("HOME", short)
        made = Tunnel(Path(short))
        yield made
        made.service.close()


class TestTunnel(StoreContract):
    steps = 20

    @pytest.fixture(autouse=True)
    def _service(self, tunnel: Tunnel) -> None:
        self.tunnel = tunnel

    def make(self, folder: Path) -> Store:
        return self.tunnel.store(folder, [], [""])


@pytest.mark.heavy
class TestTunnelToAzure(StoreContract):
    """Of a node that cannot reach Azure itself."""

    steps = 4
    listed = 50

    @pytest.fixture(autouse=True)
    def _service(self, tunnel: Tunnel, azurite: Azurite) -> None:
        self.tunnel, self.azurite = tunnel, azurite

    def make(self, folder: Path) -> Store:
        url = f"{self.azurite.new_container()}/some where/deep"
        access = grant(url, self.azurite.account_key, reads=[], writes=[""], for_s=600)
        return open_access(self.tunnel.tokens.carried("r-1", access, everything=True))


def test_a_large_object_of_azure_is_read_in_parts_and_a_missing_one_is_missing(
    tunnel: Tunnel, azurite: Azurite
) -> None:
    data = os.urandom(9 << 20)
    granted = grant(azurite.new_container(), azurite.account_key, reads=["data/"], writes=["mine/"], for_s=600)
    open_access(granted).put("mine/large", data)
    store = open_access(tunnel.tokens.carried("r-1", granted, everything=True))
    assert b"".join(store.stream("mine/large", 0, len(data))) == data
    assert b"".join(store.stream("mine/large", 5, len(data))) == data[5:], "more was asked for than there is"
    with pytest.raises(Missing):
        list(store.stream("mine/none", 0, len(data)))
    with pytest.raises(StoreDenied):
        store.put("data/other", b"x")
    tunnel.given_up.add("r-1")
    with pytest.raises(StoreDenied):
        store.get("mine/large")


def test_a_node_reads_and_writes_its_own_part_and_nothing_else(tunnel: Tunnel, tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "code").write_bytes(b"code")
    (tmp_path / "other").write_bytes(b"of somebody else")
    store = tunnel.store(tmp_path, ["blobs/"], ["runs/mine/"])
    store.put("runs/mine/report", b"words")
    assert (tmp_path / "runs" / "mine" / "report").read_bytes() == b"words"
    assert store.get("blobs/code") == b"code"
    with pytest.raises(StoreDenied):
        store.put("blobs/code", b"changed")
    with pytest.raises(StoreDenied):
        list(store.list("blobs"))  # code is found by its hash, and by nothing else
    with pytest.raises(StoreDenied):
        store.get("other")


def test_a_token_that_was_changed_opens_nothing(tunnel: Tunnel, tmp_path: Path) -> None:
    access = tunnel.access(tmp_path, ["blobs/"], [])
    writes = tunnel.access(tmp_path, [], ["blobs/"]).routes[0].token.partition(".")[0]
    forged = replace(access.routes[0], token=f"{writes}.{access.routes[0].token.partition('.')[2]}", writes=True)
    with pytest.raises(StoreDenied):
        open_access(replace(access, routes=(forged,))).put("blobs/code", b"changed")
    assert not (tmp_path / "blobs").exists()


def test_a_node_that_was_given_up_can_write_no_more(tunnel: Tunnel, tmp_path: Path) -> None:
    store = tunnel.store(tmp_path, [], ["runs/mine/"])
    store.put("runs/mine/a", b"1")
    tunnel.given_up.add("r-1")
    with pytest.raises(StoreDenied, match="given up"):
        store.put("runs/mine/b", b"2")
    assert not (tmp_path / "runs" / "mine" / "b").exists()


def test_while_the_server_is_away_the_store_is_unavailable_and_then_the_same_again(
    tunnel: Tunnel, tmp_path: Path
) -> None:
    store = tunnel.store(tmp_path, [], ["runs/mine/"])
    store.put("runs/mine/a", b"1")
    tunnel.service.close()
    fresh = tunnel.store(tmp_path, [], ["runs/mine/"])
    with pytest.raises(StoreUnavailable):
        fresh.get("runs/mine/a")
    tunnel.open()
    assert fresh.get("runs/mine/a") == store.get("runs/mine/a") == b"1"
    with pytest.raises(Missing):
        store.get("runs/mine/b")
