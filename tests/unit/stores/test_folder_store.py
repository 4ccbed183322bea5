"""What a folder promises beyond the contract: a vanished disk is noticed, and a commit survives a power cut."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from stoker.errors import Missing, StoreFailed
from stoker.stores.folder.store import FolderStore


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that were flushed to disk, in order."""
    paths: list[str] = []
    really = os.fsync

    def fsync(file: int) -> None:
        paths.append(str(Path(f"/proc/self/fd/{file}").readlink()))
        really(file)

    monkeypatch.setattr(os, "fsync", fsync)
    return paths


def test_a_root_that_vanished_is_not_created_again(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "disk")
    store.put("a/b", b"x")
    shutil.rmtree(tmp_path / "disk")
    for write in (lambda: store.put("a/b", b"y"), lambda: store.append("log", 0, b"y")):
        with pytest.raises(StoreFailed, match="no longer exists"):
            write()
    assert not (tmp_path / "disk").exists()
    (tmp_path / "disk").mkdir()
    store.put("a/b", b"back")
    assert store.get("a/b") == b"back"


def test_a_commit_comes_after_what_was_put_before_it(tmp_path: Path, synced: list[str]) -> None:
    store = FolderStore(tmp_path, durable=True)
    store.put("files/aa/one", b"1")
    store.put("files/bb/two", b"2")
    assert synced == []
    store.put("sets/1.json", b"{}", only_new=True)
    kept = [path.removeprefix(f"{tmp_path}/") for path in synced]
    assert kept[:2] == ["files/aa/one", "files/bb/two"]
    assert set(kept[2:4]) == {"files/aa", "files/bb"}
    assert kept[4].startswith("sets/.part-")
    assert kept[5:] == ["sets"]


def test_a_file_is_brought_to_the_disk_once(tmp_path: Path, synced: list[str]) -> None:
    store = FolderStore(tmp_path, durable=True)
    store.put("one", b"1")
    store.put("set-1", b"{}", only_new=True)
    synced.clear()
    store.put("two", b"2")
    store.put("gone", b"3")
    store.delete("gone")
    store.put("set-2", b"{}", only_new=True)
    assert f"{tmp_path}/two" in synced
    assert f"{tmp_path}/one" not in synced


def test_nothing_is_brought_to_the_disk_where_nobody_asked_for_it(tmp_path: Path, synced: list[str]) -> None:
    store = FolderStore(tmp_path)
    store.put("one", b"1")
    store.put("set", b"{}", only_new=True)
    first = FolderStore(tmp_path, durable=True)
    first.put("claim", b"", only_new=True)  # nothing was put that it could lose
    assert synced == []


def test_nobody_waits_for_a_pipe_in_the_place_of_an_object(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    os.mkfifo(tmp_path / "report.json")
    with pytest.raises(Missing):
        store.get("report.json")


def test_a_root_that_goes_away_before_the_first_write_is_not_created_again(tmp_path: Path) -> None:
    """What was written to a new one would be somewhere else, and in the way of the old one."""
    root = tmp_path / "store"
    FolderStore(root).put("runs/a", b"one")
    store = FolderStore(root)
    root.rename(tmp_path / "away")
    with pytest.raises(StoreFailed):
        store.put("runs/b", b"two")
    assert not root.exists()


def test_a_root_that_goes_away_while_a_folder_is_made_is_not_created_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, is_folder = tmp_path / "store", os.path.isdir
    store = FolderStore(root)
    store.put("runs/a", b"one")

    def look_and_go(path: str) -> bool:
        found = is_folder(path)
        if path == str(root) and found:
            root.rename(tmp_path / "away")
        return found

    monkeypatch.setattr(os.path, "isdir", look_and_go)
    with pytest.raises(StoreFailed):
        store.put("other/b", b"two")
    assert not root.exists()
