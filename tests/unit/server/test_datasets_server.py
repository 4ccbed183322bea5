"""The server's side of datasets: numbers, what a name refers to, and content that nobody needs any more."""

from __future__ import annotations

import hashlib
import json
import threading
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from stoker.errors import Corrupt, DatasetChanging, DatasetRefused, Missing, NotFound
from stoker.model import wire
from stoker.model.cause import Cause
from stoker.model.dataset import DataFile, DatasetVersion, Manifest
from stoker.model.workspace import layout
from stoker.server.contents import DatasetRecords
from stoker.server.records.copies import Signing
from stoker.server.records.database import Database
from stoker.server.records.tables import DatasetRecord, DatasetTable
from stoker.server.stores.stores import Keychain
from stoker.stores import Store
from stoker.testing.fakes import MemoryStore

NOW = datetime(2026, 3, 1, tzinfo=UTC)


class World:
    def __init__(self, folder: Path) -> None:
        self.stores: dict[str, Store] = {"folder": MemoryStore(), "blob": MemoryStore()}
        self.table = DatasetTable(Database.open(folder / "db").engine)
        self.signing = Signing(Keychain(folder / "keys"))
        self.datasets = DatasetRecords(self.table, self.stores.__getitem__, lambda: "folder", self.signing)

    def put(self, name: str, *contents: bytes, store: str = "folder", **facts: object) -> DatasetVersion:
        """What a client does: content first, then the manifest."""
        mark = self.datasets.start(name, store).mark
        for data in contents:
            self.stores[store].put(layout.content(name, sha(data)), data)
        manifest = Manifest(DataFile(f"{index}.bin", len(data), sha(data)) for index, data in enumerate(contents))
        version = DatasetVersion(name, 0, "", store, 0, 0, NOW, **facts)  # type: ignore[arg-type]
        return self.datasets.register(version, manifest.to_bytes(), mark)

    def content(self, store: str = "folder") -> set[bytes]:
        held = self.stores[store]
        return {held.get(one.key) for one in held.list("") if layout.content_hash(one.key)}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_versions_are_numbered_and_the_same_files_are_the_same_version(world: World) -> None:
    first = world.put("ants", b"a", b"bc")
    assert (first.ref, first.files, first.size_bytes, first.store) == ("ants@1", 2, 3, "folder")
    assert world.put("ants", b"a", b"bc") == first
    assert world.put("ants", b"a", b"d").ref == "ants@2"
    back = world.put("ants", b"a", b"bc")  # as it was: the newest again, so that the name means it
    assert (back.ref, back.id) == ("ants@3", first.id)
    assert world.put("ants", b"a", b"bc", store="blob").ref == "ants@4"
    assert world.datasets.resolve("ants") == world.datasets.resolve("ants@4")


def test_a_reference_means_the_newest_a_number_or_a_hash(world: World) -> None:
    first, second = world.put("ants", b"a"), world.put("ants", b"b")
    assert world.datasets.resolve("ants") == second
    assert world.datasets.resolve("ants@1") == first
    assert world.datasets.resolve(f"ants@{first.id[:8]}") == first
    with pytest.raises(NotFound, match="`ants@7`") as unknown:
        world.datasets.resolve("ants@7")
    assert unknown.value.hint == "versions of `ants`: 2, 1"
    with pytest.raises(NotFound) as misspelt:
        world.datasets.resolve("antz")
    assert misspelt.value.cause == Cause.NO_SUCH_DATASET and "`ants`" in misspelt.value.hint


def test_description_licence_and_tags_are_kept_until_somebody_says_otherwise(world: World) -> None:
    world.put("ants", b"a", description="ants and bees", licence="CC0", tags=("small",))
    second = world.put("ants", b"b", licence="MIT")
    assert (second.description, second.licence, second.tags) == ("ants and bees", "MIT", ("small",))
    again = world.put("ants", b"b", description="bees")
    assert again == replace(second, description="bees") == world.datasets.resolve("ants")
    assert world.datasets.resolve("ants@1").licence == "CC0"


def test_removing_a_version_removes_only_what_no_other_version_names(world: World) -> None:
    first = world.put("ants", b"only ants", b"shared", b"shared too")
    second = world.put("ants", b"shared", b"new")
    world.put("bees", b"shared too")
    removed = world.datasets.remove([first])
    assert (removed.files, removed.size_bytes) == (2, 19), "the other dataset has a copy of its own"
    assert world.content() == {b"shared", b"shared too", b"new"}
    with pytest.raises(NotFound):
        world.datasets.resolve("ants@1")
    assert world.datasets.resolve("ants") == second
    world.datasets.remove([second])
    assert world.content() == {b"shared too"}
    assert world.put("ants", b"x").number == 3  # numbers are never reused


def test_a_version_with_the_same_files_keeps_them_when_another_is_removed(world: World) -> None:
    first = world.put("ants", b"a")
    world.put("ants", b"b")
    third = world.put("ants", b"a")
    world.datasets.remove([first])
    assert Manifest.from_bytes(world.datasets.manifest(third)).files[0].sha256 == sha(b"a")
    assert world.content() == {b"a", b"b"}


def test_files_in_place_are_not_touched(world: World) -> None:
    world.stores["blob"].put("coco/a.jpg", b"image")
    mark = world.datasets.start("coco", "blob").mark
    manifest = Manifest([DataFile("a.jpg", 5, "", "coco/a.jpg", "etag")])
    version = world.datasets.register(DatasetVersion("coco", 0, "", "blob", 0, 0, NOW), manifest.to_bytes(), mark)
    assert world.datasets.remove([version]).files == 0
    assert world.stores["blob"].get("coco/a.jpg") == b"image"


def test_an_upload_that_relied_on_content_removed_meanwhile_has_to_look_again(world: World) -> None:
    old = world.put("ants", b"a")
    mark = world.datasets.start("bees", "").mark  # a client checks: `a` exists, and need not be uploaded
    world.datasets.remove([old])
    version = DatasetVersion("bees", 0, "", "folder", 0, 0, NOW)
    data = Manifest([DataFile("a", 1, sha(b"a"))]).to_bytes()
    with pytest.raises(DatasetChanging):
        world.datasets.register(version, data, mark)
    assert world.put("bees", b"a").ref == "bees@1"
    assert world.content() == {b"a"}


class SlowToDelete(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.deleting, self.go_on = threading.Event(), threading.Event()

    def delete(self, key: str) -> None:
        if layout.content_hash(key):
            self.deleting.set()
            assert self.go_on.wait(10)
        super().delete(key)


def test_nothing_is_registered_while_content_is_being_removed(world: World) -> None:
    store = world.stores["folder"] = SlowToDelete()
    old = world.put("ants", b"a")
    removing = threading.Thread(target=world.datasets.remove, args=([old],))
    removing.start()
    assert store.deleting.wait(10)
    with pytest.raises(DatasetChanging):
        world.put("bees", b"a")
    store.go_on.set()
    removing.join(10)
    assert list(store.list(layout.dataset("ants"))) == []
    world.put("bees", b"a")
    assert world.content() == {b"a"}


TRAVERSAL = b'{"format":1,"files":[["../x",1,"%s"]]}' % (b"0" * 64)


@pytest.mark.parametrize("data", [b"", b"{}", b'{"format":1,"files":[]}', TRAVERSAL])
def test_a_manifest_that_is_none_registers_nothing(world: World, data: bytes) -> None:
    with pytest.raises(DatasetRefused):
        world.datasets.register(
            DatasetVersion("a", 0, "", "folder", 0, 0, NOW), data, world.datasets.start("a", "").mark
        )
    assert world.datasets.versions() == []
    assert list(world.stores["folder"].list("")) == []


def test_a_manifest_in_another_form_would_have_two_ids_and_is_refused(world: World) -> None:
    files = [["a", 1, sha(b"a")]]
    with pytest.raises(DatasetRefused, match="canonical form"):
        world.datasets.register(
            DatasetVersion("a", 0, "", "folder", 0, 0, NOW),
            json.dumps({"files": files, "format": 1}).encode(),
            world.datasets.start("a", "").mark,
        )


def test_a_lost_or_damaged_manifest_is_reported_with_the_way_to_repair_it(world: World) -> None:
    version = world.put("ants", b"a")
    world.stores["folder"].put(version.manifest, b'{"format":1,"files":[]}')
    with pytest.raises(Corrupt, match="ants@1") as damaged:
        world.datasets.manifest(version)
    assert "stoker data put" in damaged.value.hint
    world.stores["folder"].delete(version.manifest)
    with pytest.raises(Missing, match="ants@1"):
        world.datasets.manifest(version)
    world.put("ants", b"a")
    assert Manifest.from_bytes(world.datasets.manifest(version), version.id).files[0].path == "0.bin"


def test_the_stores_hold_enough_to_make_the_table_again(world: World, tmp_path: Path) -> None:
    world.put("ants", b"a")
    world.datasets.remove([world.put("ants", b"b")])
    world.put("ants", b"c", store="blob")
    versions = world.datasets.versions()
    keys = {name: layout.dataset_record("ants") for name in ("folder", "blob")}
    opened = [world.signing.opened(name, key, world.stores[name].get(key)) for name, key in keys.items()]
    records = [wire.load(DatasetRecord, data) for data in opened]
    (tmp_path / "new").mkdir()
    table = DatasetTable(Database.open(tmp_path / "new" / "db").engine)
    table.restore(records)
    assert table.versions() == versions
    assert table.add(replace(versions[0], id="f" * 64)).number == 4
