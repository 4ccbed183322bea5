"""Datasets from a folder to a store and back, with a real server, on every kind of store."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest
from shell import Shell

from faultproxy import FaultProxy, Kind, run_proxy
from services import KEY, Azurite, S3Server
from stoker.client.api.client import Client
from stoker.client.data import putting
from stoker.client.data.content import Wrong
from stoker.client.data.datasets import Datasets
from stoker.client.data.putting import Put, PutOptions
from stoker.client.data.registry import About, Reached, Reaching, Registry
from stoker.client.local import launch
from stoker.client.progress import TransferProgress
from stoker.client.settings import from_environment
from stoker.errors import BadInput, Conflict, Corrupt, DatasetRefused, FileChanged, Missing, NotFound, StoreFailed
from stoker.model.cause import Cause
from stoker.model.dataset import DataFile, Manifest
from stoker.model.workspace import layout
from stoker.stores import Store
from stoker.stores.access import NOTHING, Credential
from stoker.stores.kinds import grant
from stoker.stores.objects.bucket import Bucket, ObjectStore
from stoker.stores.opening import open_on_node, open_store

KINDS = ["folder", "azurite", "s3"]
CONTENTS = {
    "train/ants/a.jpg": b"ant" * 1000,
    "train/ants/same as a.jpg": b"ant" * 1000,
    "train/bees/ünï 漢字.jpg": b"bee",
    "train/empty": b"",
    "val/" + "/".join(["d" * 90] * 10) + "/deep.jpg": b"deep",
    "big.bin": os.urandom(9_000_000),
}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    given = {**os.environ, "STOKER_HOME": str(tmp_path_factory.mktemp("home")), "STOKER_ACCESS_LIFE": "6"}
    settings = from_environment(given)
    yield Client.connect(settings)
    launch.stop(settings)


class Place:
    """A store with its own name in the server, a unique dataset name, and a look inside."""

    def __init__(self, client: Client, url: str, credential: Credential = NOTHING, seen_at: str = "") -> None:
        self.client = client
        self.name = f"s-{uuid.uuid4().hex[:8]}"
        self.dataset = f"ants-{uuid.uuid4().hex[:8]}"
        self.datasets: Datasets = client.datasets
        self.store: Store = open_store(url, credential)
        self.raw = partial(raw, url, credential)
        kind, values = str(credential.kind), dict(credential.values)
        told = {"name": self.name, "url": seen_at or url, "credential": kind, "values": values, "check": False}
        client.connection.post("/v1/stores", told)

    def put(self, source: Path, *, repair: bool = False, about: About | None = None) -> Put:
        return self.datasets.put(source, self.dataset, store=self.name, about=about, repair=repair)

    def contents(self) -> dict[str, bytes]:
        """By their hash, as they lie there."""
        listed = self.store.list(layout.contents(self.dataset))
        return {one.key.rpartition("/")[2]: self.store.get(one.key) for one in listed}

    def key(self, data: bytes) -> str:
        return layout.content(self.dataset, hashlib.sha256(data).hexdigest())


def raw(url: str, credential: Credential, prefix: str) -> Bucket:
    """As anybody with a token for the prefix can write there: under any name."""
    access = grant(url, credential, reads=[], writes=[prefix], for_s=900)
    store = open_on_node(next(route for route in access.routes if route.prefix == prefix))
    assert isinstance(store, ObjectStore)
    return store.bucket


@pytest.fixture
def place(request: pytest.FixtureRequest, client: Client, tmp_path: Path) -> Place:
    """Parametrised by the kind of store; without a kind, a folder."""
    kind = getattr(request, "param", "folder")
    if kind == "azurite":
        azurite: Azurite = request.getfixturevalue("azurite")
        return Place(client, azurite.new_container(), azurite.account_key)
    if kind == "s3":
        server: S3Server = request.getfixturevalue("s3_server")
        return Place(client, server.new_bucket(), server.key)
    return Place(client, (tmp_path / "the store").as_uri())


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A folder with what people have in folders."""
    return write(tmp_path / "images", CONTENTS)


def write(root: Path, contents: dict[str, bytes]) -> Path:
    for path, data in contents.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
    return root


def files(root: Path) -> dict[str, bytes]:
    found = (path for path in root.rglob("*") if path.is_file() and not path.name.startswith(".stoker-part-"))
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in found}


@pytest.mark.parametrize("place", KINDS, indirect=True)
def test_a_folder_goes_to_a_store_and_comes_back_byte_for_byte(tree: Path, place: Place, tmp_path: Path) -> None:
    first = place.put(tree, about=About("ants and bees", "CC0", ("small",)))
    assert (first.new, first.version.number, first.version.files, first.sent_files) == (True, 1, 6, 5)
    assert set(place.contents().values()) == set(CONTENTS.values())  # each content once
    again = place.put(tree)
    assert (again.new, again.sent_files, again.version) == (False, 0, first.version)

    (tree / "train" / "ants" / "a.jpg").write_bytes(b"another ant")
    (tree / "big.bin").unlink()
    second = place.put(tree)
    assert (second.version.number, second.sent_files, second.sent_bytes) == (2, 1, 11)
    assert (second.version.description, second.version.licence, second.version.tags) == (
        "ants and bees", "CC0", ("small",),
    )  # fmt: skip

    datasets, name = place.datasets, place.dataset
    assert datasets.get(f"{name}@1", tmp_path / "one").new_files == 6
    assert files(tmp_path / "one") == CONTENTS
    assert datasets.get(f"{name}@1", tmp_path / "one").new_files == 0
    datasets.get(name, tmp_path / "two")
    assert files(tmp_path / "two") == files(tree)
    difference = datasets.diff(f"{name}@1", name)
    assert [change.path for change in difference.removed] == ["big.bin"]
    assert [change.path for change in difference.changed] == ["train/ants/a.jpg"]
    assert (difference.added, difference.same_files) == ([], 4)
    assert datasets.verify(f"{name}@1") == datasets.verify(name, quick=True) == []

    removed = datasets.remove(f"{name}@1")
    assert (removed.finished, removed.files, removed.size_bytes) == (True, 1, 9_000_000)
    assert set(place.contents().values()) == set(files(tree).values())  # what the other version shares is there
    with pytest.raises(NotFound):
        datasets.show(f"{name}@1")
    datasets.remove(name)
    assert place.contents() == {}
    assert list(place.store.list("datasets")) == []


@pytest.mark.parametrize("place", KINDS, indirect=True)
def test_files_in_a_store_are_registered_where_they_are(place: Place, tmp_path: Path) -> None:
    for number in range(3):
        place.store.put(f"coco 2017/train/{number}.jpg", b"image %d" % number)
    place.store.put("coco 2017/notes.txt", b"not an image")
    datasets, name = place.datasets, place.dataset

    def add() -> int:
        return datasets.add(name, "coco 2017/**/*.jpg", store=place.name).version.number

    assert add() == 1
    assert [file.path for file in datasets.files(datasets.show(name))] == ["train/0.jpg", "train/1.jpg", "train/2.jpg"]
    assert place.contents() == {}  # nothing was copied
    datasets.get(name, tmp_path / "coco")
    assert files(tmp_path / "coco")["train/2.jpg"] == b"image 2"
    assert datasets.get(name, tmp_path / "coco").new_files == 0
    assert add() == 1
    time.sleep(0.02)  # a folder detects a change by its time
    place.store.put("coco 2017/train/2.jpg", b"image X")
    place.store.delete("coco 2017/train/1.jpg")
    assert [(fault.path, fault.wrong) for fault in datasets.verify(name)] == [
        ("train/1.jpg", Wrong.MISSING), ("train/2.jpg", Wrong.CHANGED),
    ]  # fmt: skip
    with pytest.raises(Missing, match=r"`train/1\.jpg`"):
        datasets.get(name, tmp_path / "elsewhere")
    assert files(tmp_path / "elsewhere") == {}
    assert add() == 2
    datasets.remove(name)
    assert place.store.get("coco 2017/train/2.jpg") == b"image X"  # theirs, not ours


@pytest.mark.parametrize("place", ["azurite", "s3"], indirect=True)
def test_objects_whose_names_nothing_can_read_are_left_out_of_a_dataset_and_counted(place: Place) -> None:
    place.store.put("coco/a.jpg", b"image")
    write = place.raw("coco/").write
    write("folder/", b"")  # how some tools mark one
    assert place.datasets.add(place.dataset, "coco/**", store=place.name).warnings == ()
    for name in ("/b.jpg", "c//d.jpg"):
        write(name, b"image")
    added = place.datasets.add(place.dataset, "coco/**", store=place.name)
    assert [one.path for one in place.datasets.files(added.version)] == ["a.jpg"]
    assert [warning.partition(":")[0] for warning in added.warnings] == ["skipped 2 objects below `coco/`"]


def test_a_pattern_names_what_it_says_and_nothing_else(place: Place) -> None:
    for key in ("coco/a.jpg", "coco/b/c.jpg", "coco/b/c.txt", "cocoa/x.jpg"):
        place.store.put(key, key.encode())
    datasets, name = place.datasets, place.dataset

    def named(pattern: str) -> list[str]:
        return [one.path for one in datasets.files(datasets.add(name, pattern, store=place.name).version)]

    assert named("coco/**") == ["a.jpg", "b/c.jpg", "b/c.txt"]
    assert named("coco") == ["a.jpg", "b/c.jpg", "b/c.txt"]
    assert named("coco/*.jpg") == ["a.jpg"]
    assert named("coco/**/*.jpg") == ["a.jpg", "b/c.jpg"]
    assert named("coco/a.jpg") == ["a.jpg"]
    assert named("coc[ox]/?/c.*") == ["coco/b/c.jpg", "coco/b/c.txt"]
    assert named("**") == ["coco/a.jpg", "coco/b/c.jpg", "coco/b/c.txt", "cocoa/x.jpg"]  # and nothing of Stoker's own
    with pytest.raises(NotFound, match="matches `tea/"):
        datasets.add(name, "tea/**", store=place.name)
    for pattern in ("/coco/**", "../**", "coco//x", ""):
        with pytest.raises(BadInput, match="is not a pattern"):
            datasets.add(name, pattern, store=place.name)


def slow(proxy: FaultProxy, request: str, seconds: float) -> None:
    proxy.add(Kind.DELAY, request, times=1_000_000, seconds=seconds)


def killed(client: Client, *args: str, when: Callable[[], bool]) -> None:
    """Starts a command, and kills it as a power cut would."""
    environ = {**client.settings.environ, "STOKER_HOME": str(client.settings.home.root)}
    argv = [str(Path(sys.executable).with_name("stoker")), *args]
    with subprocess.Popen(argv, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 60
        while not when():
            assert process.poll() is None, "it ended before it was killed"
            assert time.monotonic() < deadline
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGKILL)


def sent(lines: Sequence[str], contents: dict[str, bytes]) -> int:
    """The bytes of content that these requests carried. None of it is large enough to go in several."""
    sizes = {hashlib.sha256(data).hexdigest(): len(data) for data in contents.values()}
    found = [re.fullmatch(r"PUT \S+/([0-9a-f]{64})(\?.*)?", line) for line in lines]
    return sum(sizes[match[1]] for match in found if match)


def test_a_put_killed_in_the_middle_sends_only_the_rest(client: Client, azurite: Azurite, tmp_path: Path) -> None:
    tree = write(tmp_path / "images", {f"{number}.bin": os.urandom(20_000) for number in range(40)})
    contents = files(tree)
    with run_proxy(azurite.endpoint) as proxy:
        url = azurite.new_container()
        place = Place(client, url, azurite.account_key, proxy.url(url))
        slow(proxy, "PUT .*[0-9a-f]{64}", 0.2)
        put = ("data", "put", str(tree), "--name", place.dataset, "--store", place.name)
        killed(client, *put, when=lambda: len(list(place.store.list(layout.contents(place.dataset)))) >= 10)
        time.sleep(0.5)  # what was on its way arrives
        there = sum(one.size_bytes for one in place.store.list(layout.contents(place.dataset)))
        assert 0 < there < 800_000
        proxy.faults.clear()
        proxy.seen.clear()
        assert place.put(tree).sent_bytes == 800_000 - there
        assert sent(proxy.seen, contents) == 800_000 - there
        place.datasets.get(place.dataset, tmp_path / "out")
    assert files(tmp_path / "out") == contents


def test_a_get_killed_in_the_middle_resumes_where_it_stopped(client: Client, azurite: Azurite, tmp_path: Path) -> None:
    tree, out = write(tmp_path / "images", {"big.bin": os.urandom(40_000_000), "small": b"x"}), tmp_path / "out"
    with run_proxy(azurite.endpoint) as proxy:
        url = azurite.new_container()
        place = Place(client, url, azurite.account_key, proxy.url(url))
        place.put(tree)
        slow(proxy, "GET .*[0-9a-f]{64}", 0.3)
        get = ("data", "get", place.dataset, str(out))
        killed(client, *get, when=lambda: any(one.stat().st_size > 12_000_000 for one in out.glob(".stoker-part-*")))
        assert "big.bin" not in files(out)
        proxy.faults.clear()
        proxy.seen.clear()
        place.datasets.get(place.dataset, out)
        pieces = [line for line in proxy.seen if re.match(r"GET \S+/[0-9a-f]{64}", line)]
        assert len(pieces) <= 8  # of ten, three were there
    assert files(out) == files(tree)


def test_an_unchanged_tree_asks_the_store_for_nothing_and_a_new_file_for_little(
    client: Client, azurite: Azurite, tmp_path: Path
) -> None:
    tree = write(tmp_path / "images", {f"{number % 7}/{number}.txt": b"file %d" % number for number in range(100)})
    time.sleep(0.06)  # files that have just been written are not trusted to be what they were
    with run_proxy(azurite.endpoint) as proxy:
        url = azurite.new_container()
        place = Place(client, url, azurite.account_key, proxy.url(url))
        assert place.put(tree).sent_files == 100
        proxy.seen.clear()
        assert not place.put(tree).new
        assert proxy.seen == []
        (tree / "new.txt").write_text("new")
        assert place.put(tree).sent_files == 1
        assert len(proxy.seen) < 15  # a listing, an upload, a manifest and its record: not one for every file


def test_an_access_that_ends_in_the_middle_is_renewed(client: Client, azurite: Azurite, tmp_path: Path) -> None:
    tree = write(tmp_path / "images", {f"{number}.bin": os.urandom(100) for number in range(64)})
    with run_proxy(azurite.endpoint) as proxy:
        url = azurite.new_container()
        place = Place(client, url, azurite.account_key, proxy.url(url))
        slow(proxy, "PUT .*[0-9a-f]{64}", 0.9)
        started = time.time()
        assert place.put(tree).sent_files == 64
        assert time.time() - started > 6  # longer than the access that it began with
        puts = [line for line in proxy.seen if line.startswith("PUT")]
        ends = {match[1] for line in puts if (match := re.search(r"[?&]se=([^&]+)", line))}
        assert len(ends) > 1
        proxy.faults.clear()
        place.datasets.get(place.dataset, tmp_path / "out")
    assert files(tmp_path / "out") == files(tree)


@pytest.mark.parametrize(("status", "code"), [(500, "InternalError"), (503, "ServerBusy"), (429, "TooManyRequests")])
def test_a_store_that_falters_is_asked_again(
    client: Client, azurite: Azurite, tree: Path, tmp_path: Path, status: int, code: str
) -> None:
    with run_proxy(azurite.endpoint) as proxy:
        url = azurite.new_container()
        place = Place(client, url, azurite.account_key, proxy.url(url))
        proxy.add(Kind.REFUSE, "/data/", times=2, status=status, code=code)
        place.put(tree)
        proxy.add(Kind.CUT, "GET .*/data/", times=1, skip=1)
        proxy.add(Kind.DROP, "GET .*/data/", times=1, skip=1)
        place.datasets.get(place.dataset, tmp_path / "out")
    assert files(tmp_path / "out") == CONTENTS


def test_a_byte_that_comes_wrong_is_never_kept(client: Client, azurite: Azurite, tree: Path, tmp_path: Path) -> None:
    with run_proxy(azurite.endpoint) as proxy:
        url = azurite.new_container()
        place = Place(client, url, azurite.account_key, proxy.url(url))
        place.put(tree)
        proxy.add(Kind.GARBLE, "GET .*/contents/", times=1000)
        with pytest.raises(Corrupt):
            place.datasets.get(place.dataset, tmp_path / "out")
        assert not any(files(tmp_path / "out").values())  # none but the empty file, which has no byte to garble
        proxy.faults.clear()
        place.datasets.get(place.dataset, tmp_path / "out")
    assert files(tmp_path / "out") == CONTENTS


def test_a_token_that_has_ended_is_reported_with_a_message(client: Client, azurite: Azurite, tree: Path) -> None:
    url = azurite.new_container()
    place = Place(client, url, azurite.sas(url, for_s=-60))
    with pytest.raises(StoreFailed) as refused:
        place.put(tree)
    assert re.search("expired|ended|denied|refuse", refused.value.message)
    assert place.dataset not in {version.name for version in place.datasets.versions()}


@pytest.mark.parametrize("place", ["folder", "azurite"], indirect=True)
def test_damage_in_the_store_is_found_never_handed_out_and_repaired(tree: Path, place: Place, tmp_path: Path) -> None:
    place.put(tree)
    place.store.put(place.key(b"bee"), b"bEe")  # the right size
    place.store.delete(place.key(CONTENTS["big.bin"]))
    assert [(fault.path, fault.wrong) for fault in place.datasets.verify(place.dataset)] == [
        ("big.bin", Wrong.MISSING), ("train/bees/ünï 漢字.jpg", Wrong.DAMAGED),
    ]  # fmt: skip
    with pytest.raises((Missing, Corrupt)):
        place.datasets.get(place.dataset, tmp_path / "out")
    assert {"big.bin", "train/bees/ünï 漢字.jpg"}.isdisjoint(files(tmp_path / "out"))
    time.sleep(0.06)
    # Existing content is trusted. A folder adopts missing content where the file was read anyway.
    again = place.put(tree).sent_files
    assert again <= (1 if place.store.url.startswith("file:") else 0)
    assert place.put(tree, repair=True).sent_files == 2 - again
    assert place.datasets.verify(place.dataset) == []
    place.datasets.get(place.dataset, tmp_path / "out")
    assert files(tmp_path / "out") == CONTENTS


def test_a_manifest_that_was_tampered_with_writes_nothing(tree: Path, place: Place, tmp_path: Path) -> None:
    version = place.put(tree).version
    good = place.store.get(version.manifest)
    evil = Manifest([DataFile("x", 3, hashlib.sha256(b"bee").hexdigest())]).to_bytes().replace(b'"x"', b'"../../x"')
    for bad in (evil, good[:-20], b"", good.replace(b"train/empty", b"train/ampty")):
        place.store.put(version.manifest, bad)
        with pytest.raises(Corrupt, match="is damaged"):
            place.datasets.get(place.dataset, tmp_path / "out")
        assert not (tmp_path / "out").exists()
    place.store.delete(version.manifest)
    with pytest.raises(Missing):
        place.datasets.get(place.dataset, tmp_path / "out")
    assert place.put(tree, repair=True).version.id == version.id
    place.datasets.get(place.dataset, tmp_path / "out")
    assert files(tmp_path / "out") == CONTENTS


class Meddling(Reaching):
    """Changes a file each time something is about to be sent, so many times."""

    def __init__(self, client: Client, file: Path, times: int) -> None:
        super().__init__(client.connection, client.settings)
        self._file, self._times = file, times

    def store(self, name: str, *, reads: Sequence[str], writes: Sequence[str] = ()) -> Reached:
        store = super().store(name, reads=reads, writes=writes)
        if self._times:
            self._times -= 1
            put = store.put

            def meddled(key: str, data: object, *, only_new: bool = False) -> None:
                self._file.write_bytes(os.urandom(9_000_000))
                put(key, data, only_new=only_new)  # type: ignore[arg-type]

            store.put = meddled  # type: ignore[method-assign]
        store.folder = _no_folder  # type: ignore[method-assign]
        return store


@pytest.mark.parametrize("times", [1, 3])
def test_a_file_that_changes_while_it_is_sent_is_sent_again_or_refused(
    client: Client, tree: Path, place: Place, times: int, tmp_path: Path
) -> None:
    reaching = Meddling(client, tree / "big.bin", times)
    wish = PutOptions(tree, place.dataset, place.name)
    arguments = (wish, client.settings, Registry(client.connection), reaching, TransferProgress())
    if times == 3:
        with pytest.raises(FileChanged, match=r"big\.bin`"):
            putting.put(*arguments)
        assert place.dataset not in {version.name for version in place.datasets.versions()}
    else:
        putting.put(*arguments)
        place.datasets.get(place.dataset, tmp_path / "out")
        assert files(tmp_path / "out") == files(tree)
    for name, data in place.contents().items():
        assert hashlib.sha256(data).hexdigest() == name


def _no_folder(prefix: str) -> None:
    """As a store that is not a folder."""


class Removing(Reaching):
    """Removes the versions of a dataset once the upload has started to list the store."""

    def __init__(self, client: Client, name: str, *, one_pass: bool) -> None:
        super().__init__(client.connection, client.settings)
        self._datasets, self._name, self._one_pass = client.datasets, name, one_pass

    def store(self, name: str, *, reads: Sequence[str], writes: Sequence[str] = ()) -> Reached:
        store = super().store(name, reads=reads, writes=writes)
        if not self._one_pass:
            store.folder = _no_folder  # type: ignore[method-assign]
        if self._name:
            listed = list(store.list(layout.contents(self._name)))
            store.list = lambda _prefix: iter(listed)  # type: ignore[method-assign,assignment]
            self._datasets.remove(self._name)
            self._name = ""
        return store


@pytest.mark.parametrize("one_pass", [True, False])
def test_content_that_is_removed_under_an_upload_is_sent_after_all(
    client: Client, tree: Path, place: Place, one_pass: bool, tmp_path: Path
) -> None:
    place.put(tree)
    (tree / "new.jpg").write_bytes(b"another")
    wish = PutOptions(tree, place.dataset, place.name)
    reaching = Removing(client, place.dataset, one_pass=one_pass)
    done = putting.put(wish, client.settings, Registry(client.connection), reaching, TransferProgress())
    assert one_pass or done.sent_files == 5
    place.datasets.get(place.dataset, tmp_path / "out")
    assert files(tmp_path / "out") == CONTENTS | {"new.jpg": b"another"}


def test_a_file_that_never_holds_still_is_refused(tree: Path, place: Place) -> None:
    program = "import os, sys\nf = os.open(sys.argv[1], os.O_RDWR)\nwhile True: os.pwrite(f, os.urandom(9), 5)"
    with subprocess.Popen([sys.executable, "-c", program, str(tree / "big.bin")]) as writer:
        try:
            before = (tree / "big.bin").stat().st_mtime_ns
            while (tree / "big.bin").stat().st_mtime_ns == before:
                time.sleep(0.01)
            with pytest.raises(DatasetRefused, match=r"`big\.bin`"):
                place.put(tree)
        finally:
            writer.kill()
    assert all(hashlib.sha256(data).hexdigest() == name for name, data in place.contents().items())


def test_getting_never_writes_through_links_nor_over_other_files(tree: Path, place: Place, tmp_path: Path) -> None:
    place.put(tree)
    outside, out = tmp_path / "outside", tmp_path / "out"
    outside.mkdir()
    out.mkdir()
    (out / "train").symlink_to(outside)
    with pytest.raises(Conflict, match="is not a folder"):
        place.datasets.get(place.dataset, out)
    assert list(outside.iterdir()) == []
    (out / "train").unlink()
    (out / "big.bin").write_bytes(b"mine")
    (out / "mine.txt").write_bytes(b"mine too")
    with pytest.raises(Conflict, match=r"`big.bin` in"):
        place.datasets.get(place.dataset, out)
    assert files(out) == {"big.bin": b"mine", "mine.txt": b"mine too"}
    assert place.datasets.get(place.dataset, out, overwrite=True).others == 1
    assert files(out) == CONTENTS | {"mine.txt": b"mine too"}


class Disk:
    """A small disk of its own."""

    def __init__(self, place: Path, size_bytes: int) -> None:
        self._place, self._size = place, size_bytes

    def __enter__(self) -> Path:
        self._place.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={self._size}", "tmpfs", self._place], check=True)
        return self._place

    def __exit__(self, *_: object) -> None:
        subprocess.run(["umount", "-l", self._place], check=True)


def test_a_full_disk_is_reported_and_leaves_no_half_file(
    client: Client, tree: Path, place: Place, tmp_path: Path
) -> None:
    place.put(tree)
    with Disk(tmp_path / "small", 4_000_000) as small:
        with pytest.raises(StoreFailed, match=r"has 0.0 GB free, but 0.0 GB are required"):
            place.datasets.get(place.dataset, small / "out")
        assert files(small) == {}
        with pytest.raises(StoreFailed, match="the disk is full"):
            Place(client, (small / "store").as_uri()).put(tree)
        found = files(small)
    assert all(hashlib.sha256(data).hexdigest() == path.rpartition("/")[2] for path, data in found.items())


def test_the_commands_say_what_they_did(shell: Shell) -> None:
    tree = write(shell.folder / "images", {"a.jpg": b"ant", "b.jpg": b"bee"})
    done = shell.stoker("data", "put", "images", "--name", "ants", "--tag", "small", "--description", "few insects")
    assert (done.stdout, done.stderr) == ("ants@1\n", "2 files, 6 B in folder (2 files, 6 B uploaded)\n")
    (tree / "B.jpg").write_bytes(b"wasp")
    done = shell.stoker("data", "put", "images", "--name", "ants")
    assert "warning: " in done.stderr and "`B.jpg` and `b.jpg`" in done.stderr
    shown = shell.stoker("data", "ls").stdout.splitlines()[1]
    assert re.sub(r" +", " ", shown).startswith("ants@2 3 10 B folder")
    assert "few insects" in shown
    assert "versions     2, 1" in shell.stoker("data", "show", "ants").stdout
    assert shell.stoker("data", "diff", "ants@1", "ants").stdout == "+ B.jpg  4 B\n"
    got = shell.stoker("data", "get", "ants@1")
    assert (got.stdout, got.stderr) == ("ants\n", "ants@1: 2 files (2 files, 6 B downloaded)\n")
    shell.stoker("data", "verify", "ants")
    (shell.home / "store" / layout.content("ants", hashlib.sha256(b"wasp").hexdigest())).unlink()
    found = shell.stoker("data", "verify", "ants", code=1)
    assert found.stdout == "missing  B.jpg\n"
    assert "--repair" in found.stderr
    assert shell.refused("data", "put", "images", "--name", "../ants")["cause"] == Cause.NAME_INVALID
    told = shell.refused("data", "put", "images", "--name", "x", "--store", "nosuch")
    assert told["cause"] == Cause.NO_SUCH_STORE
    removed = json.loads(shell.stoker("data", "rm", "ants", "--json", "--yes").stdout)
    assert [version["number"] for version in removed["versions"]] == [2, 1]
    assert "no datasets yet" in shell.stoker("data", "ls").stderr


def test_progress_is_reported_as_events_and_never_drawn_into_a_pipe(shell: Shell, azurite: Azurite) -> None:
    write(shell.folder / "images", {f"{number}.bin": os.urandom(1000) for number in range(60)})
    shell.environ["THE_KEY"] = KEY
    with run_proxy(azurite.endpoint) as proxy:
        url = proxy.url(azurite.new_container())
        shell.stoker("store", "add", "there", url, "--key", "--from-env", "THE_KEY", "--no-check")
        slow(proxy, "PUT .*[0-9a-f]{64}", 0.4)
        out = shell.stoker("data", "put", "images", "--name", "ants", "--store", "there", "--json")
        *progress, last = [json.loads(line) for line in out.stdout.splitlines()]
        assert (last["event"], last["sent_files"], out.stderr) == ("registered", 60, "")
        assert {one["event"] for one in progress} == {"progress"}
        assert {one["all_files"] for one in progress} == {60}
        assert progress[-1]["size_bytes"] > 0
        assert [one["size_bytes"] for one in progress] == sorted(one["size_bytes"] for one in progress)
        (shell.folder / "images" / "large").write_bytes(os.urandom(30_000_000))
        proxy.faults.clear()
        slow(proxy, "PUT .*comp=block", 0.8)
        screen, terminal = os.openpty()
        with shell.start("data", "put", "images", "--name", "ants", "--store", "there", stderr=terminal) as process:
            os.close(terminal)
            drawn = b"".join(iter(partial(read_screen, screen), b"")).decode()
            assert process.wait(60) == 0
        assert re.search(r"\rputting  \d+ of 61 files  [\d.]+ MB of 30 MB  \d+%  [\d.]+ MB/s  ", drawn)
        assert drawn.endswith("61 files, 30 MB in there (1 file, 30 MB uploaded)\r\n")
        (shell.folder / "images" / "large").write_bytes(b"new")
        quiet = shell.stoker("data", "put", "images", "--name", "ants", "--store", "there").stderr
        assert quiet == "61 files, 60 kB in there (1 file, 3 B uploaded)\n"


def read_screen(screen: int) -> bytes:
    """Empty once nobody writes to it: then the system reports an error."""
    try:
        return os.read(screen, 4096).replace(b"\x1b[K", b"")
    except OSError:
        return b""


def test_a_version_that_a_run_used_is_kept_unless_forced(shell: Shell) -> None:
    tree = write(shell.folder / "images", {"a.jpg": b"ant", "b.jpg": b"bee"})
    shell.write(".stokerignore", "images\n")
    shell.stoker("data", "put", "images", "--name", "ants")
    shell.write("train.py", "import sys, pathlib; print(len(list(pathlib.Path(sys.argv[1]).rglob('*.jpg'))))")
    shell.job("python train.py ${data.images}", data={"images": {"dataset": "ants"}})
    assert shell.stoker("run").stdout == "2\n"
    assert "ants@1" in shell.stoker("show").stdout
    refused = shell.refused("data", "rm", "ants@1", "--yes")
    assert refused["cause"] == Cause.DATASET_IN_USE and "job-1" in refused["message"]
    assert "--force" in refused["hint"]
    (tree / "b.jpg").unlink()
    shell.stoker("data", "put", "images", "--name", "ants")
    assert shell.stoker("run").stdout == "1\n"
    assert "ants@1" in shell.stoker("diff", "job-1", "job-2").stdout
    assert json.loads(shell.stoker("data", "show", "ants@1", "--json").stdout)["runs"] == ["job-1"]
    assert shell.stoker("rerun", "job-1").stdout == "2\n"
    assert "add `--yes`" in shell.stoker("data", "rm", "ants@1", "--force", code=2).stderr
    shell.stoker("data", "rm", "ants@1", "--force", "--yes")
    assert [one["number"] for one in json.loads(shell.stoker("data", "ls", "--json").stdout)["versions"]] == [2]


def test_datasets_survive_the_loss_of_the_database(shell: Shell) -> None:
    write(shell.folder / "images", {"a.jpg": b"ant"})
    shell.stoker("store", "add", "there", (shell.folder / "there").as_uri(), "--anonymous")
    shell.stoker("data", "put", "images", "--name", "ants", "--store", "there")
    shell.stoker("data", "put", "images", "--name", "bees")
    before = json.loads(shell.stoker("data", "ls", "--json").stdout)
    assert len(before["versions"]) == 2
    shell.stoker("server", "stop")
    (shell.home / "stoker.db").write_bytes(b"not a database at all" * 1000)
    assert json.loads(shell.stoker("data", "ls", "--json").stdout) == before
