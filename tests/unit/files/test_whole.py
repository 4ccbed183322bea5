"""Files that exist completely or not at all."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from stoker.files import write_whole


def test_a_reader_never_sees_half_a_file(tmp_path: Path) -> None:
    path = tmp_path / "state"
    written = [letter * 2_000_000 for letter in ("a", "b")]
    write_whole(path, written[0])
    over = threading.Event()
    seen: set[str] = set()

    def read() -> None:
        while not over.is_set():
            seen.add(path.read_text())

    reader = threading.Thread(target=read)
    reader.start()
    for turn in range(20):
        write_whole(path, written[turn % 2])
    over.set()
    reader.join()
    assert seen <= set(written)
    assert [one.name for one in tmp_path.iterdir()] == ["state"]


def test_a_write_that_fails_leaves_the_old_file_and_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "there"
    (path / "inside").mkdir(parents=True)  # a folder that is not empty cannot be replaced by a file
    with pytest.raises(OSError):
        write_whole(path, "new")
    assert [one.name for one in tmp_path.iterdir()] == ["there"]


def test_a_secret_is_never_readable_by_others_not_even_for_a_moment(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("old")
    path.chmod(0o644)
    write_whole(path, b"new", mode=0o600)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_file_for_everybody_has_the_rights_that_the_umask_leaves(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_whole(tmp_path / "file", "text")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640
