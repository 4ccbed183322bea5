"""Whoever has a token can make objects whose names no store of ours would give: each of them harms only itself."""

from __future__ import annotations

import http.client
import os
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from services import KEY, Azurite, S3Server
from stoker.errors import StokerError
from stoker.model.workspace import layout
from stoker.server.api import results
from stoker.server.removals import remove_run
from stoker.stores import Store
from stoker.stores.azure.containers import container_of
from stoker.stores.azure.rights import service_sas
from stoker.stores.folder.store import FolderStore
from stoker.stores.kinds import grant, locate
from stoker.stores.opening import open_access, open_store

RUN = "0190a1b2c3d4e5f60718"
OTHER = "0190a1b2c3d4e5f60719"
GOOD = f"runs/{RUN}/attempts/1/logs/0.log"
# As they go over the wire. Names with characters that XML does not have are apart: Azurite cannot list them.
ODD = [
    *("..", "../up", "logs/../b", "%2e%2e/x", "a//b", "a/", "/lead", "//", "d/.", "d/./x", "back%5Cslash"),
    *("x%7fy", "a%0Ab", "a%0D", "log.~/00000001", "log.~/99999999", "attempts/1/logs/0.log.~/00000002"),
    *("%252e%252e", "a%252Fb", "caf%C3%A9", "cafe%CC%81", "a.", "%20", "a%2Bb%20c", "%C2%85", "&lt;"),
    "x" * 950,
]
CONTROL = ["a%01b", "a%1b[2Jb", "nul%00b", "%EF%BF%BE", "attempts/1/logs/%EF%BF%BF"]


def put(endpoint: str, path: str, headers: dict[str, str]) -> None:
    """As a script would, with nothing that tidies the path."""
    connection = http.client.HTTPConnection(urlsplit(endpoint).netloc, timeout=30)
    connection._validate_path = lambda _: None  # type: ignore[attr-defined]
    connection.request("PUT", path, b"x", headers)
    answer = connection.getresponse()
    assert answer.status in (200, 201), (path, answer.status, answer.read())
    connection.close()


def put_blob(azurite: Azurite, url: str, name: str) -> None:
    location, inside = container_of(locate(url), f"runs/{RUN}/")
    token = service_sas(location, KEY, "racwdl", 600)
    path = f"{urlsplit(azurite.endpoint).path}/{location.container}/{location.prefix}{inside}{name}?{token}"
    put(azurite.endpoint, path, {"x-ms-version": "2021-12-02", "x-ms-blob-type": "BlockBlob"})


def put_object(s3: S3Server, url: str, name: str) -> None:
    signed = "AWS4-HMAC-SHA256 Credential=stoker/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=x"
    bucket = url.removeprefix("s3://").partition("?")[0]
    put(s3.endpoint, f"/{bucket}/runs/{RUN}/{name}", {"Authorization": signed})


def check(store: Store, node: Store) -> None:
    """Good objects are listed and read next to odd ones, and the odd ones can be read, or are not shown."""
    for one in (store, node):
        keys = [stored.key for stored in one.list(f"runs/{RUN}")]
        assert GOOD in keys
        for key in keys:
            assert one.get(key) is not None
    assert [stored.key for stored in store.list(f"runs/{OTHER}")] == [f"runs/{OTHER}/attempts/1/logs/0.log"]


def fill(store: Store) -> None:
    for run in (RUN, OTHER):
        store.put(f"runs/{run}/attempts/1/logs/0.log", b"log")
        store.put(layout.record(run), b"{}")


@pytest.mark.parametrize("prefix", ["", "/deep/er"])
def test_odd_names_in_a_container_are_left_out_of_listings_and_go_with_their_run(azurite: Azurite, prefix: str) -> None:
    url = azurite.new_container() + prefix
    store = open_store(url, azurite.account_key)
    fill(store)
    for name in ODD:
        put_blob(azurite, url, name)
    check(store, open_access(grant(url, azurite.account_key, reads=[], writes=[f"runs/{RUN}/"], for_s=600)))
    remove_run(store, RUN)
    container = container_of(locate(url), f"runs/{RUN}/")[0].container
    assert container not in list(azurite.account().list(container))
    assert [stored.key for stored in store.list(f"runs/{OTHER}")]


def test_a_container_that_the_service_cannot_list_hides_no_other_and_goes_with_its_run(azurite: Azurite) -> None:
    url = azurite.new_container()
    store = open_store(url, azurite.account_key)
    fill(store)
    for name in CONTROL:
        put_blob(azurite, url, name)
    assert f"runs/{OTHER}/attempts/1/logs/0.log" in {stored.key for stored in store.list("")}
    assert results._sizes(store, RUN, 1) == results._sizes(store, OTHER, 1) == {0: 3}
    remove_run(store, RUN)
    container = container_of(locate(url), f"runs/{RUN}/")[0].container
    assert container not in list(azurite.account().list(container))


def test_odd_names_in_a_container_opened_with_a_sas_are_removed_one_by_one(azurite: Azurite) -> None:
    url = azurite.new_container()
    store = open_store(url, azurite.sas(url))
    fill(store)
    token = azurite.sas(url).values["token"]
    for name in ODD:
        path = f"{urlsplit(url).path}/runs/{RUN}/{name}?{token}"
        put(azurite.endpoint, path, {"x-ms-version": "2021-12-02", "x-ms-blob-type": "BlockBlob"})
    check(store, store)
    remove_run(store, RUN)
    left = open_access(grant(url, azurite.account_key, reads=[""], writes=[], for_s=600))
    names = {one.key for one in left._stores[""][1].bucket.entries("")}  # type: ignore[attr-defined]
    assert names == {f"runs/{OTHER}/attempts/1/logs/0.log", layout.record(OTHER)}


def test_odd_names_in_a_bucket_are_left_out_of_listings_and_go_with_their_run(s3_server: S3Server) -> None:
    url = s3_server.new_bucket()
    store = open_store(url, s3_server.key)
    fill(store)
    for name in [*ODD, *CONTROL]:
        if "%0A" not in name:  # moto does not support it
            put_object(s3_server, url, name)
    check(store, open_access(grant(url, s3_server.key, reads=[], writes=[f"runs/{RUN}/"], for_s=900)))
    remove_run(store, RUN)
    left = {one.key for one in store.bucket.entries("")}  # type: ignore[attr-defined]
    assert left == {f"runs/{OTHER}/attempts/1/logs/0.log", layout.record(OTHER)}


def deep(top: Path) -> None:
    """Deeper than a path can name, and than Python can recurse."""
    here = os.open(top, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("deeper", dir_fd=here)
        inner = os.open("deeper", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)


def locked(top: Path) -> None:
    (top / "locked" / "inner").mkdir(parents=True)
    (top / "locked" / "inner" / "file").write_bytes(b"x")
    (top / "locked" / "inner").chmod(0)
    (top / "locked").chmod(0o500)


def linked(top: Path) -> None:
    (top / "itself").symlink_to(top / "itself")
    (top / "outside").symlink_to(top.parents[2] / "outside", target_is_directory=True)
    (top / "nowhere").symlink_to("nothing")
    os.mkfifo(top / "pipe")


def named(top: Path) -> None:
    for name in (b"\xff\xfe", b"a\x01b", b"a\nb", b"back\\slash", b".part-00", b"x" * 255, b"caf\xc3\xa9", b"..."):
        (top / os.fsdecode(name)).write_bytes(b"x")


@pytest.mark.parametrize("make", [deep, locked, linked, named])
def test_whatever_a_script_makes_of_its_runs_folder_goes_with_it(tmp_path: Path, make: Callable[[Path], None]) -> None:
    store = FolderStore(tmp_path / "store")
    fill(store)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "mine").write_text("kept")
    make(tmp_path / "store" / "runs" / RUN)
    try:
        assert GOOD in [stored.key for stored in store.list(f"runs/{RUN}")]
    except StokerError as error:
        assert make is locked, error
    remove_run(store, RUN)
    remove_run(store, RUN)
    assert sorted(stored.key for stored in store.list("")) == [
        f"runs/{OTHER}/attempts/1/logs/0.log",
        layout.record(OTHER),
    ]
    assert not (tmp_path / "store" / "runs" / RUN).exists()
    assert (tmp_path / "outside" / "mine").read_text() == "kept"


def test_a_link_in_the_place_of_a_runs_folder_is_removed_and_not_followed(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "store")
    store.put(f"runs/{OTHER}/a", b"x")
    (tmp_path / "store" / "runs" / RUN).symlink_to(tmp_path / "store" / "runs" / OTHER, target_is_directory=True)
    remove_run(store, RUN)
    assert [stored.key for stored in store.list("")] == [f"runs/{OTHER}/a"]
