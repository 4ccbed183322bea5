"""Files that a folder store takes in by their hash, reading them once."""

from __future__ import annotations

import hashlib
import io
import os
from pathlib import Path

import pytest

from stoker.client.data.adopting import Adopting
from stoker.client.data.folder import look
from stoker.client.progress import Progress
from stoker.client.statindex import StatIndex
from stoker.errors import DatasetRefused
from stoker.stores.folder import FolderStore


def key(sha256: str) -> str:
    return f"{sha256[:2]}/{sha256}"


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "store")


@pytest.mark.parametrize("size", [0, 1, 262_144, 262_145, 3_000_000])
def test_a_file_lies_under_its_hash_and_nothing_else_does(store: FolderStore, tmp_path: Path, size: int) -> None:
    data = os.urandom(size)
    (tmp_path / "file").write_bytes(data)
    adopted = store.adopt(str(tmp_path / "file"), key)
    assert adopted.sha256 == hashlib.sha256(data).hexdigest()
    assert adopted.new
    assert store.get(key(adopted.sha256)) == data
    assert not store.adopt(str(tmp_path / "file"), key).new
    assert [one.name for one in store.root.rglob("*") if one.is_file()] == [adopted.sha256]


class Restless(FolderStore):
    """Its source changes each time it has been read."""

    def _copy(self, source: io.FileIO, part: str, size: int) -> str:
        sha256 = super()._copy(source, part, size)
        self.source.write_bytes(os.urandom(size))
        os.utime(self.source, ns=(0, len(self.times)))
        self.times.append(sha256)
        return sha256

    source: Path
    times: list[str]


def test_a_file_that_never_holds_still_is_refused_and_never_put(tmp_path: Path) -> None:
    store = Restless(tmp_path / "store")
    folder = tmp_path / "data"
    folder.mkdir()
    store.source, store.times = folder / "log", []
    store.source.write_bytes(b"first")
    adopting = Adopting(store, StatIndex(tmp_path / "index"), lambda _: False, Progress())
    with pytest.raises(DatasetRefused, match=r"`log` changed each of the 3 times"):
        adopting.run(look(folder))
    assert len(store.times) == 3
    assert [one for one in store.root.rglob("*") if one.is_file()] == []


def test_what_the_store_has_is_not_sent_again(store: FolderStore, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "old").write_bytes(b"old")
    os.utime(folder / "old", (1, 1))
    index = StatIndex(tmp_path / "index")
    first = Adopting(store, index, lambda _: False, Progress())
    first.run(look(folder))
    (folder / "new").write_bytes(b"new")
    again = Adopting(store, StatIndex(tmp_path / "index"), lambda sha256: sha256 in first.sent, Progress())
    again.run(look(folder))
    assert sorted(one.path for one in again.files) == ["new", "old"]
    assert list(again.sent) == [hashlib.sha256(b"new").hexdigest()]
