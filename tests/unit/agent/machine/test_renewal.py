"""An agent continues with its next access, in time or at once, and never with one that was not meant for it."""

import stat
import sys
import time
from pathlib import Path

import pytest

from stoker.agent.machine.renewal import RenewedStore
from stoker.agent.machine.tenant import LeaseWatch
from stoker.agent.notice.stopping import hear
from stoker.errors import Corrupt, StoreDenied
from stoker.model.node import Lease
from stoker.model.wire import dump
from stoker.model.workspace import layout
from stoker.stores import unsealing
from stoker.stores.access import Access, Route
from stoker.stores.folder.store import FolderStore
from stoker.stores.sealing import seal
from stoker.stores.signing import new_key, signed

ORDERS = layout.orders("r", 1)
KEY = layout.access(*layout.node_with(ORDERS))
SEAL = new_key()


@pytest.fixture
def folder(tmp_path: Path) -> FolderStore:
    store = FolderStore(tmp_path / "store")
    store.put("runs/r/run.json", b"run")
    return store


def access(folder: FolderStore, ends_in_s: float, *, writes: bool = True) -> Access:
    """The run's folder, and the place of the next access for longer."""
    route = Route("runs/r/", f"{folder.url}/runs/r", "", writes)
    ticket = Route(KEY, f"{folder.url}/{KEY}")
    return Access((route, ticket), time.time() + ends_in_s)


def give(folder: FolderStore, given: Access, key: str = SEAL) -> None:
    folder.put(KEY, seal(key, given.to_text(), KEY))


def opened(given: Access, tmp_path: Path) -> RenewedStore:
    return RenewedStore(given, SEAL, KEY, tmp_path / "node" / "access")


def test_the_server_puts_an_access_where_the_agent_looks() -> None:
    assert KEY == layout.access("r", 1) == "runs/r/attempts/1/access/node-0"
    assert layout.node_with(layout.orders("r", 3, 2)) == ("r", 3, 2)


def test_an_access_that_is_about_to_end_is_replaced(folder: FolderStore, tmp_path: Path) -> None:
    store = opened(access(folder, 0.0), tmp_path)
    newer = access(folder, 1000.0)
    give(folder, newer)
    assert store.get("runs/r/run.json") == b"run"
    assert store.access == newer
    kept = tmp_path / "node" / "access"
    assert Access.from_text(kept.read_text()) == newer
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600


def test_an_access_with_time_left_asks_for_nothing(folder: FolderStore, tmp_path: Path) -> None:
    first = access(folder, 1000.0)
    store = opened(first, tmp_path)
    give(folder, access(folder, 2000.0))
    store.get("runs/r/run.json")
    assert store.access == first


def test_what_the_server_did_not_sign_for_this_node_and_place_is_not_heard(folder: FolderStore, tmp_path: Path) -> None:
    """Colleagues may write to the same storage account: neither a command nor a lease of theirs counts."""
    store, key = opened(access(folder, 1000.0), tmp_path), layout.wishes("r", 1)
    said = b'{"visits": []}'
    for forged in (said, signed(new_key(), said, key), signed(SEAL, said, ORDERS)):
        folder.put(key, forged)
        with pytest.raises(Corrupt):
            hear(store, key)
    folder.put(key, signed(SEAL, said, key))
    assert hear(store, key) == said
    lease = layout.lease("r", 1)
    watch = LeaseWatch(store, lease, 10.0, lambda: 0.0)
    folder.put(lease, dump(Lease(1, 9999.0)))
    assert watch.look() == 10.0
    folder.put(lease, signed(SEAL, dump(Lease(1, 60.0)), lease))
    assert watch.look() == 60.0


def test_in_a_folder_of_this_computer_words_need_no_signature(folder: FolderStore) -> None:
    assert hear(folder, "runs/r/run.json") == b"run"


def test_a_refusal_asks_at_once_and_tries_again(folder: FolderStore, tmp_path: Path) -> None:
    store = opened(access(folder, 1000.0, writes=False), tmp_path)
    give(folder, access(folder, 2000.0))
    store.put("runs/r/x", b"1")
    assert store.append("runs/r/y", 0, b"22") == 2
    assert sorted(one.key for one in store.list("runs/r")) == sorted([KEY, "runs/r/run.json", "runs/r/x", "runs/r/y"])
    store.delete("runs/r/x")
    assert folder.get("runs/r/y") == b"22"


def test_a_refusal_without_another_access_is_a_refusal(folder: FolderStore, tmp_path: Path) -> None:
    store = opened(access(folder, 1000.0, writes=False), tmp_path)
    with pytest.raises(StoreDenied):
        store.put("runs/r/x", b"1")


def test_an_older_access_does_not_replace_a_newer_one(folder: FolderStore, tmp_path: Path) -> None:
    first = access(folder, 1.0)
    store = opened(first, tmp_path)
    give(folder, access(folder, -100.0))
    with pytest.raises(StoreDenied):
        store.put("blobs/aa/x", b"1")
    assert store.access == first


def test_what_another_sealed_is_not_believed(folder: FolderStore, tmp_path: Path) -> None:
    first = access(folder, 0.0)
    store = opened(first, tmp_path)
    give(folder, access(folder, 1000.0), new_key())
    assert store.get("runs/r/run.json") == b"run"
    assert store.access == first


def test_a_node_that_cannot_decrypt_says_so_once_and_works_on_with_the_access_it_has(
    folder: FolderStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = access(folder, 0.0)
    store = opened(first, tmp_path)
    give(folder, access(folder, 1000.0))
    monkeypatch.setattr(unsealing, "libraries", lambda: iter(()))
    monkeypatch.setattr(sys, "executable", "/usr/bin/false")
    assert store.get("runs/r/run.json") == store.get("runs/r/run.json") == b"run"
    assert store.access == first
    assert capsys.readouterr().err.count("libssl3") == 1
