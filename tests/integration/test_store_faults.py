"""Stores and transfers through a proxy that refuses, cuts, loses and garbles: an error message or the right bytes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from faultproxy import FaultProxy, Kind, run_proxy
from services import Azurite, S3Server
from stoker.errors import AlreadyThere, Corrupt, FileChanged, Missing, StoreDenied, StoreFailed, StoreUnavailable
from stoker.server.removals import remove_run
from stoker.stores import Store
from stoker.stores.access import Credential
from stoker.stores.kinds import grant
from stoker.stores.opening import open_access, open_store
from stoker.stores.transfer.files import Item, download, part_of, upload
from stoker.stores.transfer.verified import mark_of


@pytest.fixture
def proxy(azurite: Azurite) -> Iterator[FaultProxy]:
    with run_proxy(azurite.endpoint) as running:
        yield running


@pytest.fixture(params=["obstore", "node"])
def store(request: pytest.FixtureRequest, azurite: Azurite, proxy: FaultProxy) -> Store:
    """The same container by the clients of server and node, both through the proxy."""
    url = proxy.url(azurite.new_container())
    if request.param == "node":
        return open_access(grant(url, azurite.account_key, reads=[], writes=[""], for_s=600))
    return open_store(url, azurite.sas(url))


def files(folder: Path, *sizes: int) -> list[Item]:
    items = []
    for number, size in enumerate(sizes):
        data = os.urandom(size)
        path = folder / f"file {number} ü"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        sha256 = hashlib.sha256(data).hexdigest()
        items.append(Item(str(path), f"data/{sha256}", size, sha256))
    return items


def elsewhere(items: list[Item], folder: Path) -> list[Item]:
    return [item._replace(place=str(folder / "deep" / Path(item.place).name)) for item in items]


def assert_same(items: list[Item], others: list[Item]) -> None:
    for item, other in zip(items, others, strict=True):
        assert Path(item.place).read_bytes() == Path(other.place).read_bytes()


@pytest.mark.parametrize(
    ("status", "code", "expected", "words"),
    [
        (403, "AuthenticationFailed", StoreDenied, "refused the credential"),
        (403, "AuthorizationPermissionMismatch", StoreDenied, "does not permit this"),
        (404, "BlobNotFound", Missing, "`key` not found"),
        (404, "ContainerNotFound", Missing, "does not exist"),
        (409, "BlobAlreadyExists", AlreadyThere, "already exists"),
        (412, "ConditionNotMet", AlreadyThere, "already exists"),
        (400, "InvalidInput", StoreFailed, "status 400"),
    ],
)
def test_a_refusal_has_a_message(
    store: Store, proxy: FaultProxy, status: int, code: str, expected: type[StoreFailed], words: str
) -> None:
    proxy.add(Kind.REFUSE, "PUT", times=99, status=status, code=code)
    with pytest.raises(expected) as refused:
        store.put("key", b"x", only_new=expected is AlreadyThere)
    assert words in refused.value.message
    assert "sig=" not in str(refused.value)


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_store_that_is_busy_for_a_moment_is_asked_again(store: Store, proxy: FaultProxy, status: int) -> None:
    put = proxy.add(Kind.REFUSE, "PUT", times=2, status=status)
    get = proxy.add(Kind.REFUSE, "GET", times=2, status=status)
    store.put("key", b"bytes")
    assert store.get("key") == b"bytes"
    assert (put.met, get.met) == (2, 2)


def test_a_store_that_stays_busy_is_said_to_be(store: Store, proxy: FaultProxy) -> None:
    proxy.add(Kind.REFUSE, "GET", times=99, status=503)
    with pytest.raises(StoreUnavailable, match="throttling requests"):
        store.get("key")


@pytest.mark.parametrize("kind", [Kind.CUT, Kind.DROP])
def test_a_lost_connection_is_reopened(store: Store, proxy: FaultProxy, kind: Kind) -> None:
    data = os.urandom(300_000)
    store.put("key", data)
    fault = proxy.add(kind, "GET", times=2)
    assert store.get("key") == data
    assert fault.met == 2


def test_a_put_whose_answer_was_lost_is_not_taken_for_somebody_elses(store: Store, proxy: FaultProxy) -> None:
    fault = proxy.add(Kind.LOSE, "PUT")
    store.put("lock", b"mine", only_new=True)
    assert fault.met == 1
    assert store.get("lock") == b"mine"
    with pytest.raises(AlreadyThere):
        store.put("lock", b"mine", only_new=True)


def test_an_append_whose_answer_was_lost_is_not_there_twice(store: Store, proxy: FaultProxy) -> None:
    store.append("log", 0, b"one ")
    proxy.add(Kind.LOSE, "PUT", times=2)
    store.append("log", 4, b"two ")
    store.append("log", 8, b"three")
    assert store.get("log") == b"one two three"


def test_an_append_that_failed_is_repeated_without_harm(store: Store, proxy: FaultProxy) -> None:
    store.append("log", 0, b"one ")
    fault = proxy.add(Kind.REFUSE, "PUT", times=1, status=403, code="AuthorizationFailure")
    with pytest.raises(StoreDenied):
        store.append("log", 4, b"two")
    assert fault.met == 1
    assert store.append("log", 4, b"two") == 7
    assert store.get("log") == b"one two"


def test_a_transfer_outlives_every_passing_fault(store: Store, proxy: FaultProxy, tmp_path: Path) -> None:
    items = files(tmp_path / "from", 0, 10, 20_000, 5 << 20, 20 << 20)
    proxy.add(Kind.REFUSE, "PUT", times=3, status=503, skip=1)
    proxy.add(Kind.DROP, "PUT", times=2, skip=2)
    proxy.add(Kind.LOSE, "PUT", times=1)
    upload(store, items)
    proxy.faults.clear()
    proxy.add(Kind.CUT, "GET", times=4)
    proxy.add(Kind.REFUSE, "GET", times=3, status=500)
    back = elsewhere(items, tmp_path / "to")
    download(store, back)
    assert_same(items, back)
    assert not list((tmp_path / "to").rglob(".stoker-part-*"))


def test_many_large_files_outlive_streams_that_break_off(store: Store, proxy: FaultProxy, tmp_path: Path) -> None:
    """Each has its own connection: what arrived before it broke is kept, and the rest is requested."""
    items = files(tmp_path / "from", *[9 << 20] * 4)
    upload(store, items)
    proxy.add(Kind.CUT, "GET .*data/", times=3)
    proxy.add(Kind.REFUSE, "GET .*data/", times=2, status=503)
    back = elsewhere(items, tmp_path / "to")
    download(store, back)
    assert_same(items, back)
    assert not list((tmp_path / "to").rglob(".stoker-part-*"))


def test_a_garbled_answer_never_becomes_a_file(store: Store, proxy: FaultProxy, tmp_path: Path) -> None:
    items = files(tmp_path / "from", 20_000, 9 << 20)
    upload(store, items)
    proxy.add(Kind.GARBLE, "GET .*data", times=99)
    for item in elsewhere(items, tmp_path / "to"):
        with pytest.raises(Corrupt):
            download(store, [item])
        assert not Path(item.place).exists()
    proxy.faults.clear()
    back = elsewhere(items, tmp_path / "to")
    download(store, back)
    assert_same(items, back)


def test_a_download_that_was_interrupted_resumes_where_it_was(store: Store, proxy: FaultProxy, tmp_path: Path) -> None:
    (item,) = files(tmp_path / "from", 24 << 20)
    upload(store, [item])
    (back,) = elsewhere([item], tmp_path / "to")
    proxy.add(Kind.REFUSE, "GET .*data", times=99, skip=3, status=403, code="AuthorizationFailure")
    with pytest.raises(StoreDenied):
        download(store, [back])
    (part,) = (tmp_path / "to").rglob(".stoker-part-*")
    there = part.stat().st_size
    assert 0 < there < item.size_bytes
    proxy.faults.clear()
    proxy.seen.clear()
    download(store, [back])
    assert_same([item], [back])
    assert len([line for line in proxy.seen if line.startswith("GET")]) == -(-(item.size_bytes - there) // (4 << 20))


def test_an_upload_that_was_interrupted_resumes_where_it_was(store: Store, proxy: FaultProxy, tmp_path: Path) -> None:
    """Of one large file: blocks that came are not sent again, and those of other contents are not counted on."""
    items = files(tmp_path, 60_000_000)
    proxy.add(Kind.REFUSE, "PUT .*comp=block&", status=403, code="AuthorizationFailure", skip=5, times=1000)
    with pytest.raises(StoreDenied):
        upload(store, items)
    came = 5
    proxy.faults.clear()
    proxy.seen.clear()
    upload(store, items)
    assert len([line for line in proxy.seen if "comp=block&" in line]) == 8 - came
    other = elsewhere(items, tmp_path)
    download(store, other)
    assert_same(items, other)


def test_blocks_of_a_file_that_changed_are_not_reused(store: Store, proxy: FaultProxy, tmp_path: Path) -> None:
    """Its bytes were other ones while the first blocks went, and are right again when it is tried once more."""
    [item] = items = files(tmp_path, 30_000_000)
    path = Path(item.place)
    right = path.read_bytes()
    path.write_bytes(os.urandom(9_000_000) + right[9_000_000:])
    with pytest.raises(FileChanged):
        upload(store, items)
    path.write_bytes(right)
    upload(store, items)
    other = elsewhere(items, tmp_path)
    download(store, other)
    assert_same(items, other)


def test_an_answer_that_takes_long_is_waited_for(store: Store, proxy: FaultProxy, tmp_path: Path) -> None:
    items = files(tmp_path, 10_000, 9_000_000)
    slow = proxy.add(Kind.DELAY, "(PUT|GET) ", times=4, seconds=2.0)
    upload(store, items)
    other = elsewhere(items, tmp_path)
    download(store, other)
    assert_same(items, other)
    assert slow.met == 4


def test_what_an_earlier_download_left_damaged_is_not_trusted(store: Store, tmp_path: Path) -> None:
    (item,) = files(tmp_path / "from", 9 << 20)
    upload(store, [item])
    (back,) = elsewhere([item], tmp_path / "to")
    Path(back.place).parent.mkdir(parents=True)
    Path(part_of(back.place, item.sha256)).write_bytes(bytes(5 << 20))
    download(store, [back])
    assert_same([item], [back])


def test_large_files_with_the_same_content_come_to_one_folder_side_by_side(store: Store, tmp_path: Path) -> None:
    (item,) = files(tmp_path / "from", 9 << 20)
    upload(store, [item])
    copies = [item._replace(place=str(tmp_path / "to" / f"copy-{number}")) for number in range(4)]
    download(store, copies)
    for copy in copies:
        assert_same([item], [copy])
    assert not list((tmp_path / "to").glob(".stoker-part-*"))


def test_a_token_that_ends_stops_a_transfer_with_a_message(azurite: Azurite, tmp_path: Path) -> None:
    url = azurite.new_container()
    ended = open_store(url, azurite.sas(url, for_s=-10))
    with pytest.raises(StoreDenied, match="expired"):
        upload(ended, files(tmp_path, 100))
    node = open_access(grant(url, azurite.account_key, reads=[], writes=[""], for_s=-10))
    with pytest.raises(StoreDenied, match="expired at"):
        node.get("key")
    node.renew(grant(url, azurite.account_key, reads=[], writes=[""], for_s=60))
    node.put("key", b"after")
    assert node.get("key") == b"after"


def test_a_wrong_key_is_reported_as_wrong(azurite: Azurite) -> None:
    url = azurite.new_container()
    wrong = Credential("account-key", {"key": "d3Jvbmc="})
    with pytest.raises(StoreDenied):
        list(open_store(url, wrong).list(""))


def test_a_token_of_one_run_does_not_open_another(azurite: Azurite) -> None:
    url = azurite.new_container()
    whole = open_store(url, azurite.account_key)
    whole.put("runs/aa11/x", b"one")
    whole.put("runs/bb22/x", b"two")
    whole.put("data/x", b"shared")
    node = open_access(grant(url, azurite.account_key, reads=["data/"], writes=["runs/aa11/"], for_s=60))
    assert node.get("runs/aa11/x") == b"one"
    assert node.get("data/x") == b"shared"
    node.put("runs/aa11/y", b"new")
    for refused in (lambda: node.get("runs/bb22/x"), lambda: node.put("data/x", b"no"), lambda: node.delete("data/x")):
        with pytest.raises(StoreDenied):
            refused()
    # The tokens themselves are as narrow: a node that uses them otherwise gets no further.
    tokens = {route.prefix: route.token for route in node.access.routes}
    sas = Credential("sas", {"token": tokens["runs/aa11/"]})
    with pytest.raises(StoreDenied):
        open_store(f"{url}-bb22", sas).get("x")
    reading = Credential("sas", {"token": tokens["data/"]})
    with pytest.raises(StoreDenied):
        open_store(url, reading).put("data/x", b"no")
    assert {one.key for one in whole.list("runs")} == {"runs/aa11/x", "runs/aa11/y", "runs/bb22/x"}
    assert {one.key for one in whole.list("")} == {"runs/aa11/x", "runs/aa11/y", "runs/bb22/x", "data/x"}


def test_nobody_at_the_address_is_reported_within_seconds(azurite: Azurite) -> None:
    url = "http://127.0.0.1:9/devstoreaccount1/box"
    for store in (
        open_store(url, azurite.account_key),
        open_access(grant(url, azurite.account_key, reads=[""], writes=[], for_s=60)),
    ):
        with pytest.raises(StoreUnavailable, match="is unreachable"):
            store.get("key")


def test_a_file_that_changes_while_it_is_sent_leaves_nothing(store: Store, tmp_path: Path) -> None:
    items = files(tmp_path, 1000, 9 << 20)
    for item in items:
        Path(item.place).write_bytes(bytes(item.size_bytes))
        with pytest.raises(FileChanged):
            upload(store, [item])
    assert list(store.list("")) == []


def test_an_s3_upload_that_fails_leaves_no_parts(s3_server: S3Server, tmp_path: Path) -> None:
    store = open_access(grant(s3_server.new_bucket(), s3_server.key, reads=[], writes=[""], for_s=900))
    (item,) = files(tmp_path, 20 << 20)
    Path(item.place).write_bytes(bytes(item.size_bytes))
    with pytest.raises(FileChanged):
        upload(store, [item])
    assert list(store.list("")) == []


def test_a_run_that_is_removed_leaves_no_container(azurite: Azurite) -> None:
    url = azurite.new_container()
    store = open_store(url, azurite.account_key)
    store.put("runs/aa11/x", b"one")
    store.append("runs/aa11/log", 0, bytes(3 << 20))
    store.put("runs/bb22/x", b"two")
    name = url.rpartition("/")[2]
    remove_run(store, "aa11")
    remove_run(store, "aa11")
    assert sorted(azurite.account().list(name)) == [name, f"{name}-bb22"]
    assert [one.key for one in store.list("runs")] == ["runs/bb22/x"]
    with pytest.raises(Missing):
        store.get("runs/aa11/x")


def test_a_listing_of_several_pages_is_complete(azurite: Azurite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.stores.azure.client.PAGE", 3)
    url = azurite.new_container()
    keys = {f"data/{number}" for number in range(10)} | {f"runs/{number:04x}/x" for number in range(5)}
    whole = open_store(url, azurite.account_key)
    for key in keys:
        whole.put(key, b"")
    assert {one.key for one in whole.list("")} == keys  # five containers: two pages
    node = open_access(grant(url, azurite.account_key, reads=["data/"], writes=[], for_s=60))
    assert {one.key for one in node.list("data")} == {key for key in keys if key.startswith("data")}


def test_a_file_that_was_hashed_and_held_still_is_sent_as_it_is(store: Store, tmp_path: Path) -> None:
    [item] = files(tmp_path, 20_000_000)
    mark = mark_of(Path(item.place).stat())
    upload(store, [item._replace(mark=mark)])
    back = elsewhere([item], tmp_path / "to")
    download(store, back)
    assert_same([item], back)


def test_a_file_that_changed_since_it_was_hashed_is_not_sent(store: Store, tmp_path: Path) -> None:
    [item] = files(tmp_path, 20_000_000)
    marked = item._replace(mark=mark_of(Path(item.place).stat()))
    with Path(item.place).open("r+b") as file:
        file.write(b"other")
    with pytest.raises(FileChanged):
        upload(store, [marked])
    assert list(store.list("data")) == []
