"""Read past the cache or through it, a file has the same bytes."""

from __future__ import annotations

import errno
import fcntl
import io
import os
from pathlib import Path
from typing import Any

import pytest

from stoker.stores.transfer import disk
from stoker.stores.transfer.disk import PIECE_BYTES, read_past_cache


def read(path: Path, size: int, rooms: int = 1) -> bytes:
    with io.FileIO(path, "rb") as file:
        return b"".join(bytes(piece) for piece in read_past_cache(file, size, rooms))


def forget(path: Path) -> None:
    """Its pages leave the cache."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("rooms", [1, 6])
@pytest.mark.parametrize(
    "size", [0, 1, 4095, 4096, 4097, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES + 5000]
)
def test_every_size_comes_whole(tmp_path: Path, size: int, rooms: int, cached: bool) -> None:
    path = tmp_path / "file"
    path.write_bytes(data := os.urandom(size))
    if not cached:
        forget(path)
    assert read(path, size, rooms) == data


@pytest.mark.parametrize("missing", [1, 4096, 5000, PIECE_BYTES])
def test_a_file_that_is_shorter_ends_early(tmp_path: Path, missing: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(data := os.urandom(3 * PIECE_BYTES))
    forget(path)
    assert read(path, len(data) + missing) == data
    forget(path)
    assert read(path, len(data) - missing) == data[:-missing]


def test_pieces_are_good_until_their_rooms_are_used_again(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(data := os.urandom(4 * PIECE_BYTES))
    forget(path)
    with io.FileIO(path, "rb") as file:
        pieces = read_past_cache(file, len(data), 3)
        held = [next(pieces) for _ in range(3)]
        assert b"".join(map(bytes, held)) == data[: 3 * PIECE_BYTES]
        next(pieces)
        assert bytes(held[0]) == data[3 * PIECE_BYTES :]


def test_a_system_that_cannot_go_past_its_cache_goes_through_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(data := os.urandom(2 * PIECE_BYTES + 7))
    forget(path)
    monkeypatch.setattr(disk, "os", object())  # neither O_DIRECT nor a way to ask what is cached
    assert read(path, len(data)) == data


class Refusing(io.FileIO):
    """On a disk that can be asked to go past the cache, and then cannot."""

    def readinto(self, room: Any, /) -> int:
        if fcntl.fcntl(self, fcntl.F_GETFL) & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return super().readinto(room)


def test_a_disk_that_refuses_only_when_it_is_read_is_read_through_the_cache(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(data := os.urandom(2 * PIECE_BYTES + 7))
    forget(path)
    with Refusing(path, "rb") as file:
        assert b"".join(bytes(piece) for piece in read_past_cache(file, len(data))) == data


def test_what_cannot_be_read_at_all_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    with io.FileIO(tmp_path / "file", "rb") as file:
        os.dup2(os.open(tmp_path, os.O_RDONLY), file.fileno())
        with pytest.raises(IsADirectoryError):
            list(read_past_cache(file, PIECE_BYTES))
