"""What a run reads is pinned when it is submitted, and what cannot be read is refused with its field."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stoker.errors import JobInvalid, NotFound
from stoker.model.dataset import DataFile, DatasetVersion, Manifest
from stoker.model.job.job import DataInput, DataMode, Job
from stoker.model.orders import DataOrder
from stoker.model.workspace import layout
from stoker.model.workspace.store import KnownStore
from stoker.server.contents import DatasetRecords
from stoker.server.inputs import InputRequest, Pinned, pin
from stoker.server.records.copies import Signing
from stoker.server.records.database import Database
from stoker.server.records.tables import DatasetTable
from stoker.server.stores.stores import Keychain
from stoker.stores import Store
from stoker.testing.fakes import MemoryStore

NOW = datetime(2026, 3, 1, tzinfo=UTC)
URL = "https://acc.blob.core.windows.net/cont/pre"


class World:
    """Two stores and their datasets: the folder, and a container."""

    def __init__(self, folder: Path) -> None:
        self.opened: dict[str, Store] = {"folder": MemoryStore(), "blob": MemoryStore()}
        known = [KnownStore("folder", "file:///home/store", workspace=True), KnownStore("blob", URL)]
        by_name = {store.name: store for store in known}
        self.stores: Any = SimpleNamespace(all=known, open=self.opened.__getitem__, named=by_name.__getitem__)
        table = DatasetTable(Database.open(folder / "db").engine)
        self.datasets = DatasetRecords(
            table, self.opened.__getitem__, lambda: "folder", Signing(Keychain(folder / "keys"))
        )

    def add(self, store: str, *files: DataFile) -> DatasetVersion:
        mark = self.datasets.start("ants", store).mark
        version = DatasetVersion("ants", 0, "", store, 0, 0, NOW)
        return self.datasets.register(version, Manifest(files).to_bytes(), mark)

    def pin(self, shares_files: bool = True, pins: dict[str, str] | None = None, nodes: int = 1, **data: Any) -> Pinned:
        job = Job(name="j", run="true", data={"x": DataInput(**data)}, nodes=nodes)
        return pin(InputRequest(job, "r1", "folder", pins or {}, shares_files, self.kept), self.datasets, self.stores)

    def kept(self, name: str) -> str:
        """As a provider that keeps data under names of its own."""
        if name != "cloud:coco@3":
            raise NotFound("a provider that keeps data under this name")
        return f"{URL}/assets/coco"


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def stored(path: str) -> DataFile:
    return DataFile(path, 1, hashlib.sha256(path.encode()).hexdigest())


def test_a_dataset_of_the_run_s_own_store_is_named_plainly(world: World) -> None:
    version = world.add("folder", stored("a"), stored("b"))
    assert world.pin(dataset="ants", mode="mount", shard=True).inputs["x"] == DataOrder(
        label="ants@1",
        mode=DataMode.MOUNT,
        shard=True,
        dataset=f"ants@{version.id}",
        store="folder",
        manifest=layout.manifest("ants", version.id),
        id=version.id,
        reads=("stoker/data/ants/",),
        files=2,
        size_bytes=2,
    )


def test_one_of_another_store_goes_through_a_route(world: World) -> None:
    version = world.add("blob", DataFile("a", 1, key="coco/x/a", etag="1"), DataFile("b", 1, key="coco/y/b", etag="2"))
    order = world.pin(dataset="ants").inputs["x"]
    assert (order.root, order.manifest) == ("@blob/", f"@blob/{layout.manifest('ants', version.id)}")
    assert order.reads == ("stoker/data/ants/", "coco/")


def test_a_pin_outlives_newer_versions(world: World) -> None:
    first = world.add("folder", stored("a"))
    world.add("folder", stored("a"), stored("b"))
    assert world.pin(dataset="ants").inputs["x"].label == "ants@2"
    assert world.pin(dataset="ants", pins={"x": f"ants@{first.id}"}).inputs["x"].label == "ants@1"


def test_a_url_on_the_web_is_taken_as_it_is(world: World) -> None:
    order = world.pin(path="https://example.org/w.pt?sig=secret", sha256="0" * 64).inputs["x"]
    assert (order.url, order.sha256, order.label) == (
        "https://example.org/w.pt?sig=secret",
        "0" * 64,
        "https://example.org/w.pt",
    )
    assert world.pin(path="/a/path").inputs == {}


def test_a_url_inside_a_store_is_listed(world: World) -> None:
    world.opened["blob"].put("coco/a/one", b"1")
    world.opened["blob"].put("coco/two", b"22")
    pinned = world.pin(path="az://acc/cont/pre/coco")
    order = pinned.inputs["x"]
    assert (order.store, order.root, order.manifest, order.reads) == (
        "blob",
        "@blob/",
        "runs/r1/inputs/x.json",
        ("coco/",),
    )
    manifest = Manifest.from_bytes(pinned.listings["runs/r1/inputs/x.json"], order.id)
    assert [(file.path, file.key, file.size_bytes) for file in manifest.files] == [
        ("a/one", "coco/a/one", 1),
        ("two", "coco/two", 2),
    ]
    single = world.pin(path=f"{URL}/coco/two")
    assert [file.path for file in Manifest.from_bytes(single.listings["runs/r1/inputs/x.json"]).files] == ["two"]
    with pytest.raises(JobInvalid, match="the store has other files there by now"):
        world.pin(path="az://acc/cont/pre/coco", pins={"x": "0" * 64})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"dataset": "bees"}, "data.x.dataset: found `bees`"),
        ({"path": "s3://bucket/coco"}, "stoker store add"),
        ({"path": f"{URL}/nothing"}, "it has nothing at"),
        (
            {"dataset": "ants", "shard": True, "nodes": 3},
            "data.x.shard: found `true`, expected at least one file for each",
        ),
        ({"dataset": "ants", "shares_files": False}, "`folder` is a folder of this computer"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_field(world: World, given: dict[str, Any], said: str) -> None:
    world.add("folder", stored("a"))
    with pytest.raises(JobInvalid) as refused:
        world.pin(**given)
    assert said in str(refused.value)


def test_a_manifest_that_is_gone_is_reported(world: World) -> None:
    version = world.add("folder", stored("a"))
    world.opened["folder"].delete(version.manifest)
    with pytest.raises(JobInvalid, match="ants@1"):
        world.pin(dataset="ants")


def test_data_that_a_provider_keeps_is_listed_where_it_is(world: World) -> None:
    for name in ("1.jpg", "2.jpg"):
        world.opened["blob"].put(f"assets/coco/{name}", b"x")
    order = world.pin(False, dataset="cloud:coco@3").inputs["x"]
    assert (order.store, order.files, order.mode) == ("blob", 2, "auto")
    with pytest.raises(JobInvalid) as refused:
        world.pin(False, dataset="cloud:coc@3")
    assert [one.field for one in refused.value.problems] == ["data.x.dataset"]
