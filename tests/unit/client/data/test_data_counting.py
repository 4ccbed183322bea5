"""Bytes are counted as they pass, once for each that arrives, and are not changed."""

from __future__ import annotations

import io
from pathlib import Path
from typing import BinaryIO

import pytest

from stoker.client.data.content import CountedStore
from stoker.errors import StoreUnavailable
from stoker.stores.folder.store import FolderStore
from stoker.testing.fakes import MemoryStore


class Faltering(MemoryStore):
    def put(self, key: str, data: bytes | BinaryIO, *, only_new: bool = False) -> None:
        assert not isinstance(data, bytes)
        data.read(700)
        raise StoreUnavailable("busy")


def test_pieces_of_a_large_file_are_reported_as_they_are_read(tmp_path: Path) -> None:
    told: list[int] = []
    counted = CountedStore(FolderStore(tmp_path), told.append)
    data = bytes(range(256)) * 20_000
    counted.put("a", io.FileIO(_written(tmp_path / "source", data)))
    assert counted.get("a", 0, 5_000_000) + counted.get("a", 5_000_000, 5_000_000) == data
    assert sum(told) == 2 * len(data)
    assert len(told) > 4
    assert counted.at_once == FolderStore.at_once


def test_what_did_not_arrive_is_taken_back() -> None:
    told: list[int] = []
    with pytest.raises(StoreUnavailable):
        CountedStore(Faltering(), told.append).put("a", io.BytesIO(bytes(1000)))
    assert told == [700, -700]


def _written(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    return str(path)
