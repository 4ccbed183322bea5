"""Files that a folder store adopts by their hash, reading them once."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

import pytest

from stoker.client.data.adopting import LEAST_FILES, Adopting
from stoker.client.data.folder import look
from stoker.client.progress import TransferProgress
from stoker.client.source.statindex import StatIndex
from stoker.errors import DatasetRefused
from stoker.stores.folder.store import FolderStore


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


@pytest.mark.parametrize("size", [5, 300_000])
def test_a_file_that_never_holds_still_is_refused_and_never_put(
    store: FolderStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    file, looks = folder / "log", []
    file.write_bytes(bytes(size))
    found = look(folder)
    fstat = os.fstat

    def restless(fd: int) -> os.stat_result:
        """It was written to since it was last looked at."""
        looks.append(fd)
        os.utime(file, ns=(0, len(looks)))
        return fstat(fd)

    monkeypatch.setattr(os, "fstat", restless)
    adopting = Adopting(store, StatIndex(tmp_path / "index"), lambda _: False, TransferProgress())
    with pytest.raises(DatasetRefused, match="`log`"):
        adopting.run(found)
    assert len(looks) >= 6
    assert [one for one in store.root.rglob("*") if one.is_file()] == []


def many(folder: Path, count: int) -> dict[str, str]:
    """Hashes by path, some of them the same."""
    folder.mkdir()
    for number in range(count):
        (folder / f"{number} ü").write_bytes(b"%d" % (number % 900))
    return {f"{number} ü": hashlib.sha256(b"%d" % (number % 900)).hexdigest() for number in range(count)}


def test_thousands_of_small_files_are_taken_by_several_processes(store: FolderStore, tmp_path: Path) -> None:
    hashes = many(tmp_path / "data", LEAST_FILES)
    (tmp_path / "data" / "large").write_bytes(bytes(300_000))
    adopting = Adopting(store, StatIndex(tmp_path / "index"), lambda _: False, TransferProgress())
    adopting.run(look(tmp_path / "data"))
    found = {one.path: one.sha256 for one in adopting.files}
    assert found == hashes | {"large": hashlib.sha256(bytes(300_000)).hexdigest()}
    assert {one.name for one in store.root.rglob("*") if one.is_file()} == set(found.values()) == set(adopting.sent)


def test_one_that_cannot_be_read_among_thousands_is_named(store: FolderStore, tmp_path: Path) -> None:
    many(tmp_path / "data", LEAST_FILES)
    found = look(tmp_path / "data")
    (tmp_path / "data" / "7 ü").unlink()
    with pytest.raises(DatasetRefused, match="`7 ü`"):
        Adopting(store, StatIndex(None), lambda _: False, TransferProgress()).run(found)


def test_processes_that_do_not_work_only_cost_time(
    store: FolderStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    hashes = many(tmp_path / "data", LEAST_FILES)
    adopting = Adopting(store, StatIndex(None), lambda _: False, TransferProgress())
    adopting.run(look(tmp_path / "data"))
    assert {one.path: one.sha256 for one in adopting.files} == hashes


def test_what_the_store_has_is_not_sent_again(store: FolderStore, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "old").write_bytes(b"old")
    os.utime(folder / "old", (1, 1))
    index = StatIndex(tmp_path / "index")
    first = Adopting(store, index, lambda _: False, TransferProgress())
    first.run(look(folder))
    (folder / "new").write_bytes(b"new")
    again = Adopting(store, StatIndex(tmp_path / "index"), lambda sha256: sha256 in first.sent, TransferProgress())
    again.run(look(folder))
    assert sorted(one.path for one in again.files) == ["new", "old"]
    assert list(again.sent) == [hashlib.sha256(b"new").hexdigest()]
