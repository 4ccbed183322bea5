"""A snapshot is written out as it was taken, or not at all."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from stoker.client.source.tree import scan
from stoker.errors import Conflict, Corrupt, Missing, SnapshotRefused
from stoker.model.snapshot import Entry, EntryKind, Snapshot
from stoker.model.workspace import layout
from stoker.stores import Store
from stoker.stores.folder.store import FolderStore
from stoker.stores.trees.unpack import unpack
from stoker.testing.fakes import MemoryStore


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def kept(store: Store, path: str, data: bytes, *, executable: bool = False) -> Entry:
    """A file whose content is in the store."""
    store.put(layout.blob(sha256(data)), data)
    return Entry(path, EntryKind.FILE, sha256(data), len(data), executable)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def test_what_comes_out_is_what_went_in(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "pkg" / "déjà vu").mkdir(parents=True)
    (source / "empty" / "deep").mkdir(parents=True)
    (source / "train.py").write_bytes(b"print(1)")
    (source / "pkg" / "déjà vu" / "日本.bin").write_bytes(os.urandom(9_000_000))
    (source / "run.sh").write_bytes(b"#!/bin/sh")
    (source / "run.sh").chmod(0o755)
    (source / "data").symlink_to("/usr")
    (source / "pkg" / "back").symlink_to("../train.py")
    tree, store = scan(source), FolderStore(tmp_path / "store")
    for name in tree.files:
        with tree.open(name) as content:
            store.put(layout.blob(name), content)
    unpack(store, tree.snapshot, tmp_path / "work" / "copy")
    assert scan(tmp_path / "work" / "copy").snapshot == tree.snapshot
    assert os.access(tmp_path / "work" / "copy" / "run.sh", os.X_OK)
    assert (tmp_path / "work" / "copy" / "empty" / "deep").is_dir()


def test_an_empty_snapshot_is_an_empty_folder(tmp_path: Path, store: MemoryStore) -> None:
    unpack(store, Snapshot(()), tmp_path / "copy")
    assert list((tmp_path / "copy").iterdir()) == []


@pytest.mark.parametrize("bytes_there", [b"CONTENT", b"short", b""])
def test_a_damaged_file_is_named(tmp_path: Path, store: MemoryStore, bytes_there: bytes) -> None:
    entry = kept(store, "pkg/model.py", b"content")
    store.put(layout.blob(entry.sha256), bytes_there)
    with pytest.raises(Corrupt, match=r"`pkg/model\.py`"):
        unpack(store, Snapshot((entry,)), tmp_path / "copy")


def test_a_damaged_large_file_is_named(tmp_path: Path, store: MemoryStore) -> None:
    data = bytes(5_000_000)
    entry = kept(store, "big.bin", data)
    store.put(layout.blob(entry.sha256), data[:-1] + b"x")
    with pytest.raises(Corrupt, match=r"`big\.bin`"):
        unpack(store, Snapshot((entry,)), tmp_path / "copy")


@pytest.mark.parametrize("size", [3, 5_000_000])
def test_a_lost_file_is_named(tmp_path: Path, store: MemoryStore, size: int) -> None:
    entry = Entry("pkg/model.py", EntryKind.FILE, "0" * 64, size)
    with pytest.raises(Missing, match=r"`pkg/model\.py`"):
        unpack(store, Snapshot((entry,)), tmp_path / "copy")


def test_a_folder_with_something_in_it_is_refused(tmp_path: Path, store: MemoryStore) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Conflict, match="not empty"):
        unpack(store, Snapshot(()), tmp_path)


def test_a_snapshot_that_would_write_elsewhere_is_refused_before_anything_is_written(
    tmp_path: Path, store: MemoryStore
) -> None:
    attacks = [
        [kept(store, "../up.py", b"x")],
        [kept(store, "/tmp/up.py", b"x")],
        [Entry("a", EntryKind.LINK, target=str(tmp_path)), kept(store, "a/up.py", b"x")],
        [kept(store, "a/b/up.py", b"x"), Entry("a/b", EntryKind.LINK, target="/")],
    ]
    for entries in attacks:
        with pytest.raises(SnapshotRefused):
            unpack(store, Snapshot(tuple(entries)), tmp_path / "copy")
    assert list(tmp_path.iterdir()) == []
