"""Many files to a store and back: the right bytes or an error, whatever their names and sizes."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pytest

from stoker.errors import Corrupt, FileChanged, Missing, StoreFailed, StoreUnavailable
from stoker.stores import Store
from stoker.stores.folder.store import FolderStore
from stoker.stores.transfer.files import Item, download, upload
from stoker.testing.fakes import MemoryStore

NAMES = ["plain", "with space", "ünï cødé 日本語", "a:b?c*d", "#", "%2e%2e", "-", ".hidden", "n" * 200]


@pytest.fixture(params=["folder", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return FolderStore(tmp_path / "store") if request.param == "folder" else MemoryStore()


def item(place: Path, data: bytes) -> Item:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(data)
    sha256 = hashlib.sha256(data).hexdigest()
    return Item(str(place), f"data/{sha256[:2]}/{sha256}", len(data), sha256)


def moved(one: Item, folder: Path) -> Item:
    return one._replace(place=str(folder / Path(one.place).name))


def test_names_and_sizes_of_all_kinds_come_back(store: Store, tmp_path: Path) -> None:
    sizes = [0, 1, 4095, (4 << 20) - 1, 4 << 20, (4 << 20) + 1, 9 << 20, 17, 18]
    items = [item(tmp_path / "from" / name, os.urandom(size)) for name, size in zip(NAMES, sizes, strict=True)]
    told: list[tuple[int, int]] = []
    upload(store, items, lambda size, files: told.append((size, files)))
    assert sum(size for size, _ in told) == sum(sizes)
    assert sum(files for _, files in told) == len(items)
    back = [moved(one, tmp_path / "to" / "deep") for one in items]
    download(store, back)
    for one, other in zip(items, back, strict=True):
        assert Path(one.place).read_bytes() == Path(other.place).read_bytes()
    assert sorted(one.name for one in (tmp_path / "to" / "deep").iterdir()) == sorted(NAMES)


def test_thousands_of_small_files_come_back(store: Store, tmp_path: Path) -> None:
    items = [item(tmp_path / "from" / str(number), b"%d" % number) for number in range(2000)]
    upload(store, iter(items))
    download(store, (moved(one, tmp_path / "to") for one in items))
    assert {one.name: one.read_bytes() for one in (tmp_path / "to").iterdir()} == {
        str(number): b"%d" % number for number in range(2000)
    }


@pytest.mark.parametrize("size", [1000, 9 << 20])
def test_a_file_with_another_content_than_its_hash_is_not_sent(store: Store, tmp_path: Path, size: int) -> None:
    one = item(tmp_path / "file", os.urandom(size))
    Path(one.place).write_bytes(os.urandom(size))
    with pytest.raises(FileChanged):
        upload(store, [one])
    for other in (size - 1, size + 1):
        Path(one.place).write_bytes(bytes(other))
        with pytest.raises(FileChanged):
            upload(store, [one])
    assert list(store.list("")) == []


def test_a_file_that_grew_while_it_was_sent_is_refused(store: Store, tmp_path: Path) -> None:
    one = item(tmp_path / "file", os.urandom(9 << 20))
    with Path(one.place).open("ab") as file:
        file.write(b"more")
    with pytest.raises(FileChanged):
        upload(store, [one])


@pytest.mark.parametrize("size", [1000, 9 << 20])
def test_an_object_with_other_bytes_never_becomes_a_file(store: Store, tmp_path: Path, size: int) -> None:
    one = item(tmp_path / "file", os.urandom(size))
    for wrong in (os.urandom(size), bytes(size - 1)):
        store.put(one.key, wrong)
        with pytest.raises(Corrupt):
            download(store, [moved(one, tmp_path / "to")])
    assert not (tmp_path / "to" / "file").exists()
    with pytest.raises(Missing):
        download(store, [moved(one, tmp_path / "to")._replace(key="nothing")])


def test_a_file_without_a_hash_is_checked_by_its_size(store: Store, tmp_path: Path) -> None:
    for size in (1000, 9 << 20):
        one = item(tmp_path / "file", os.urandom(size))._replace(sha256="")
        store.put(one.key, Path(one.place).read_bytes())
        download(store, [moved(one, tmp_path / "to")])
        assert (tmp_path / "to" / "file").read_bytes() == Path(one.place).read_bytes()
        store.put(one.key, bytes(size + 1))
        with pytest.raises(Corrupt):
            download(store, [moved(one, tmp_path / "again")])


def test_nothing_begins_after_an_error(store: Store, tmp_path: Path) -> None:
    given = 0

    def items() -> Iterator[Item]:
        nonlocal given
        for number in range(10_000):
            given += 1
            yield Item(str(tmp_path / "nothing"), f"key/{number}", 1, "")

    with pytest.raises(StoreFailed, match="could not read"):
        upload(store, items())
    assert given < 100


def test_an_error_of_who_names_the_files_is_raised(store: Store) -> None:
    def items() -> Iterator[Item]:
        raise ValueError("no more")
        yield

    with pytest.raises(ValueError, match="no more"):
        upload(store, items())


class _Busy(MemoryStore):
    """Throttles requests for a while."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times
        self.lock = threading.Lock()

    def put(self, key: str, data: bytes | BinaryIO, *, only_new: bool = False) -> None:
        with self.lock:
            self.times -= 1
            if self.times >= 0:
                raise StoreUnavailable("busy")
        super().put(key, data, only_new=only_new)


def test_a_store_that_is_busy_is_asked_again(tmp_path: Path) -> None:
    store = _Busy(1)
    one = item(tmp_path / "file", os.urandom(9 << 20))
    upload(store, [one])
    assert hashlib.sha256(store.get(one.key)).hexdigest() == one.sha256
    with pytest.raises(StoreUnavailable):
        upload(_Busy(1), [one], try_for_s=0)
