"""A file that was hashed and is unchanged since: uploaded in regions, reported on the way, refused once it has
changed."""

from __future__ import annotations

import hashlib
import io
import os
import socket
import threading
from pathlib import Path

import pytest

from stoker.errors import Corrupt
from stoker.stores.transfer.verified import Still, mark_of

DATA = os.urandom(1_300_000)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "file").write_bytes(DATA)
    return tmp_path / "file"


def still(file: Path) -> Still:
    source = io.FileIO(file, "rb")
    return Still(source, hashlib.sha256(DATA).hexdigest(), mark_of(os.fstat(source.fileno())))


def test_its_regions_are_the_whole_and_can_be_read_again(file: Path) -> None:
    regions = list(still(file).regions(500_000))
    assert [len(one) for one in regions] == [500_000, 500_000, 300_000]
    for _ in range(2):
        assert b"".join(bytes(piece) for one in regions for piece in one) == DATA


def test_what_is_read_twice_or_skipped_is_told_once(file: Path) -> None:
    told: list[int] = []
    one = still(file)
    one.told = told.append
    first, second, third = one.regions(500_000)
    next(iter(first))
    for region in (first, second):
        list(region)
    third.skip()
    assert sum(told) == len(DATA)


def test_a_region_goes_straight_to_a_connection(file: Path) -> None:
    ours, theirs = socket.socketpair()
    came = bytearray()

    def receive() -> None:
        while piece := theirs.recv(1 << 16):
            came.extend(piece)

    reader = threading.Thread(target=receive)
    reader.start()
    with ours:
        for region in still(file).regions(500_000):
            region.send(ours)
    reader.join()
    theirs.close()
    assert bytes(came) == DATA


def test_a_file_that_was_written_to_fails_the_check_and_has_another_state(file: Path) -> None:
    before = still(file)
    before.check()
    with file.open("r+b") as writer:
        writer.write(b"x")
    with pytest.raises(Corrupt):
        before.check()
    assert still(file).state != before.state


@pytest.mark.parametrize("straight", [False, True])
def test_a_file_that_has_become_shorter_is_noticed_on_the_way(file: Path, straight: bool) -> None:
    region = list(still(file).regions(500_000))[-1]
    os.truncate(file, 1_100_000)
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(Corrupt):
        if straight:
            region.send(ours)
        list(region)
