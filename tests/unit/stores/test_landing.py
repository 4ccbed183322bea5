"""Files land verified, in a folder that belongs to their run, and nowhere else."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import shutil
import time
from functools import partial
from pathlib import Path

import pytest

from stoker.errors import Conflict, Corrupt, Missing, SnapshotRefused, StoreFailed
from stoker.model.cause import Cause
from stoker.model.snapshot import Entry, EntryKind
from stoker.stores.trees.blobstream import blob_stream, read_blobs
from stoker.stores.trees.landing import MARKER, Landing, choose_folder


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def file(path: str, data: bytes, *, executable: bool = False) -> Entry:
    return Entry(path, EntryKind.FILE, sha256(data), len(data), executable)


def link(path: str, target: str) -> Entry:
    return Entry(path, EntryKind.LINK, target=target)


def land(folder: Path, entries: list[Entry], *contents: bytes, owner: str = "run-1") -> list[str]:
    """What was wanted, once all of it has landed."""
    landing = Landing(entries, folder, owner)
    wanted = landing.wanted()
    for data in contents:
        landing.take(sha256(data), io.BytesIO(data))
    landing.finish()
    return wanted


def listing(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")} - {MARKER}


def test_files_links_and_empty_folders_land(tmp_path: Path) -> None:
    entries = [
        file("model.pt", b"weights"),
        file("bin/run.sh", b"#!/bin/sh", executable=True),
        file("copies/ünï.pt", b"weights"),
        file("empty", b""),
        link("latest", "model.pt"),
        Entry("logs/old", EntryKind.FOLDER),
    ]
    wanted = land(tmp_path / "out", entries, b"weights", b"#!/bin/sh", b"")
    out = tmp_path / "out"
    assert wanted == [sha256(b"weights"), sha256(b"#!/bin/sh"), sha256(b"")]
    assert listing(out) == {
        "model.pt", "bin", "bin/run.sh", "copies", "copies/ünï.pt", "empty", "latest", "logs", "logs/old",
    }  # fmt: skip
    assert (out / "model.pt").read_bytes() == (out / "copies/ünï.pt").read_bytes() == b"weights"
    assert (out / "latest").readlink() == Path("model.pt")
    assert [os.access(out / path, os.X_OK) for path in ("bin/run.sh", "model.pt")] == [True, False]
    assert json.loads((out / MARKER).read_bytes()) == {"run": "run-1"}


def test_two_files_with_the_same_content_are_not_one(tmp_path: Path) -> None:
    land(tmp_path / "out", [file("a", b"same"), file("b", b"same")], b"same")
    (tmp_path / "out" / "a").write_bytes(b"changed")
    assert (tmp_path / "out" / "b").read_bytes() == b"same"


def test_the_mode_of_a_new_file_follows_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        land(tmp_path / "out", [file("a", b"a"), file("b", b"b", executable=True)], b"a", b"b")
    finally:
        os.umask(before)
    assert [(tmp_path / "out" / name).stat().st_mode & 0o777 for name in "ab"] == [0o640, 0o750]


def test_what_is_there_already_is_kept(tmp_path: Path) -> None:
    entries = [file("a", b"a"), file("b/c", b"c")]
    land(tmp_path / "out", entries, b"a", b"c")
    inode = (tmp_path / "out" / "a").stat().st_ino
    (tmp_path / "out" / "b" / "c").write_bytes(b"C")
    assert land(tmp_path / "out", entries, b"a", b"c") == [sha256(b"c")]
    assert (tmp_path / "out" / "b" / "c").read_bytes() == b"c"
    assert (tmp_path / "out" / "a").stat().st_ino == inode


def test_a_file_that_is_there_gets_its_executable_bit_right(tmp_path: Path) -> None:
    land(tmp_path / "out", [file("a", b"a"), file("b", b"b", executable=True)], b"a", b"b")
    assert land(tmp_path / "out", [file("a", b"a", executable=True), file("b", b"b")]) == []
    assert [os.access(tmp_path / "out" / name, os.X_OK) for name in "ab"] == [True, False]


def test_a_content_nobody_wants_is_left_unread(tmp_path: Path) -> None:
    landing = Landing([], tmp_path / "out", "run-1")
    stream = io.BytesIO(b"surplus")
    landing.take(sha256(b"surplus"), stream)
    landing.finish()
    assert stream.tell() == 0
    assert listing(tmp_path / "out") == set()


@pytest.mark.parametrize("came", [b"other!!", b"short", b""])
def test_a_content_that_is_not_what_it_should_be_never_lands(tmp_path: Path, came: bytes) -> None:
    landing = Landing([file("model.pt", b"content")], tmp_path / "out", "run-1")
    with pytest.raises(Corrupt, match=r"`model\.pt`"):
        landing.take(sha256(b"content"), io.BytesIO(came))
    assert listing(tmp_path / "out") == set()
    with pytest.raises(Missing, match=r"`model\.pt`"):
        landing.finish()
    landing.take(sha256(b"content"), io.BytesIO(b"content"))
    landing.finish()
    assert (tmp_path / "out" / "model.pt").read_bytes() == b"content"


class Broken(io.BytesIO):
    """A connection that is lost on the way."""

    def read(self, size: int | None = -1, /) -> bytes:
        raise ConnectionResetError("lost")


def test_a_lost_connection_is_not_taken_for_a_bad_disk(tmp_path: Path) -> None:
    landing = Landing([file("a", b"content")], tmp_path / "out", "run-1")
    with pytest.raises(ConnectionResetError):
        landing.take(sha256(b"content"), Broken())
    assert listing(tmp_path / "out") == set()


def test_a_damaged_content_leaves_the_old_file(tmp_path: Path) -> None:
    land(tmp_path / "out", [file("a", b"old")], b"old")
    with pytest.raises(Corrupt):
        Landing([file("a", b"new")], tmp_path / "out", "run-1").take(sha256(b"new"), io.BytesIO(b"bad"))
    assert (tmp_path / "out" / "a").read_bytes() == b"old"
    assert listing(tmp_path / "out") == {"a"}


def test_a_stream_of_blobs_lands(tmp_path: Path) -> None:
    contents = [b"%d" % number for number in range(500)]
    entries = [file(f"d{number % 7}/{number}", data) for number, data in enumerate(contents)]
    sent = b"".join(blob_stream((sha256(data), len(data), partial(io.BytesIO, data)) for data in contents))
    landing = Landing(entries, tmp_path / "out", "run-1")
    for name, blob in read_blobs(io.BytesIO(sent)):
        landing.take(name, blob)
    landing.finish()
    assert [(tmp_path / "out" / entry.path).read_bytes() for entry in entries] == contents


def test_a_damaged_stream_of_blobs_does_not_land(tmp_path: Path) -> None:
    sent = b"".join(blob_stream([(sha256(b"content"), 7, lambda: io.BytesIO(b"content"))]))
    landing = Landing([file("a", b"content")], tmp_path / "out", "run-1")
    with pytest.raises(Corrupt, match="`a`"):
        for name, blob in read_blobs(io.BytesIO(sent.replace(b"content", b"CONTENT"))):
            landing.take(name, blob)
    assert listing(tmp_path / "out") == set()


def test_a_verified_stream_of_another_content_is_not_trusted(tmp_path: Path) -> None:
    sent = b"".join(blob_stream([(sha256(b"other"), 5, lambda: io.BytesIO(b"other"))]))
    _, blob = next(read_blobs(io.BytesIO(sent)))
    landing = Landing([file("a", b"right")], tmp_path / "out", "run-1")
    with pytest.raises(Corrupt):
        landing.take(sha256(b"right"), blob)


@pytest.mark.parametrize("path", ["../up", "/etc/x", "a/../../x", "", "a//b", "a/", "./a", "a/./b", "nul\0", "\udcff"])
def test_paths_that_could_lead_elsewhere_are_refused_before_anything_is_written(tmp_path: Path, path: str) -> None:
    with pytest.raises(SnapshotRefused):
        Landing([file("fine", b""), file(path, b"")], tmp_path / "out", "run-1")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "entries",
    [
        [file("a", b"1"), file("a", b"2")],
        [link("a", "/etc"), file("a/passwd", b"")],
        [file("a/b/c", b""), link("a", "/tmp")],
        [file("a", b""), Entry("a/b", EntryKind.FOLDER)],
        [link("a", "b"), link("a/b", "c")],
    ],
)
def test_entries_that_cannot_lie_in_one_folder_are_refused(tmp_path: Path, entries: list[Entry]) -> None:
    with pytest.raises(SnapshotRefused):
        Landing(entries, tmp_path / "out", "run-1")


def test_a_folder_entry_above_files_is_fine(tmp_path: Path) -> None:
    land(tmp_path / "out", [Entry("a", EntryKind.FOLDER), file("a/b", b"x")], b"x")
    assert listing(tmp_path / "out") == {"a", "a/b"}


def test_nothing_is_written_through_a_link_in_the_folder(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "file").write_bytes(b"precious")
    land(tmp_path / "out", [link("folder", str(elsewhere)), link("file", str(elsewhere / "file"))])
    entries = [file("folder/file", b"new"), file("folder/sub/x", b"new"), file("file", b"new")]
    land(tmp_path / "out", entries, b"new")
    assert (elsewhere / "file").read_bytes() == b"precious"
    assert listing(elsewhere) == {"file"}
    assert {path: (tmp_path / "out" / path).is_symlink() for path in ("folder", "file")} == {
        "folder": False,
        "file": False,
    }
    assert (tmp_path / "out" / "folder" / "file").read_bytes() == b"new"


def test_what_a_link_leads_to_is_not_taken_for_what_should_be_there(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "a").write_bytes(b"same")
    land(tmp_path / "out", [link("folder", str(elsewhere)), link("b", str(elsewhere / "a"))])
    assert land(tmp_path / "out", [file("folder/a", b"same"), file("b", b"same")], b"same") == [sha256(b"same")]
    assert not (tmp_path / "out" / "folder").is_symlink()


def test_a_link_as_long_as_the_file_it_stands_for_is_no_file(tmp_path: Path) -> None:
    data = str(tmp_path / "a").encode()
    (tmp_path / "a").write_bytes(data)
    land(tmp_path / "out", [link("a", str(tmp_path / "a"))])
    assert land(tmp_path / "out", [file("a", data)], data) == [sha256(data)]
    assert not (tmp_path / "out" / "a").is_symlink()


def test_a_later_manifest_may_change_what_a_path_is(tmp_path: Path) -> None:
    out = tmp_path / "out"
    land(out, [file("a", b"x"), Entry("b", EntryKind.FOLDER), link("c", "a"), link("d", "a")], b"x")
    land(out, [file("a/x", b"x"), file("b", b"x"), link("c", "b"), Entry("d", EntryKind.FOLDER)], b"x")
    assert (out / "a" / "x").read_bytes() == (out / "b").read_bytes() == b"x"
    assert (out / "c").readlink() == Path("b")
    assert not (out / "d").is_symlink()
    with pytest.raises(StoreFailed, match="`a`") as refused:  # what is in it may be someone's
        land(out, [file("a", b"x")], b"x")
    assert refused.value.cause == Cause.DISK_REFUSED
    assert isinstance(refused.value.__cause__, OSError) and refused.value.__cause__.errno == errno.ENOTEMPTY
    assert listing(out) == {"a", "a/x", "b", "c", "d"}


def test_a_file_called_like_the_marker_does_not_replace_it(tmp_path: Path) -> None:
    land(tmp_path / "out", [file(MARKER, b"{}"), file(f"sub/{MARKER}", b"{}")], b"{}")
    assert json.loads((tmp_path / "out" / MARKER).read_bytes()) == {"run": "run-1"}
    assert (tmp_path / "out" / "sub" / MARKER).read_bytes() == b"{}"


def test_what_a_dead_process_was_writing_is_removed_once_it_is_old(tmp_path: Path) -> None:
    land(tmp_path / "out", [])
    for name in (".stoker-part-old", ".stoker-part-new"):
        (tmp_path / "out" / name).touch()
    hours_ago = time.time() - 7200
    os.utime(tmp_path / "out" / ".stoker-part-old", (hours_ago, hours_ago))
    land(tmp_path / "out", [])
    assert listing(tmp_path / "out") == {".stoker-part-new"}


def test_the_folder_is_named_after_the_run(tmp_path: Path) -> None:
    assert choose_folder(tmp_path / "outputs", "ants-1", "r1") == tmp_path / "outputs" / "ants-1"


def test_the_same_run_gets_the_same_folder_again(tmp_path: Path) -> None:
    folder = choose_folder(tmp_path, "ants-1", "r1")
    (folder / "model.pt").touch()
    assert choose_folder(tmp_path, "ants-1", "r1") == folder


def test_another_run_of_the_same_name_gets_another_folder(tmp_path: Path) -> None:
    chosen = [choose_folder(tmp_path, "ants-1", owner).name for owner in ("r1", "r2", "r3", "r2")]
    assert chosen == ["ants-1", "ants-1~2", "ants-1~3", "ants-1~2"]


def test_a_folder_of_the_user_is_left_alone_unless_it_is_empty(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "notes.txt").touch()
    (tmp_path / "c").touch()
    assert [choose_folder(tmp_path, name, "r1").name for name in "abc"] == ["a", "b~2", "c~2"]


@pytest.mark.parametrize("marker", [b"", b"{", b"[]", b'"r1"', b"{}", b'{"run": null}'])
def test_a_marker_that_says_nothing_makes_a_folder_someone_elses(tmp_path: Path, marker: bytes) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / MARKER).write_bytes(marker)
    assert choose_folder(tmp_path, "a", "r1").name == "a~2"


def test_landing_in_the_folder_of_another_run_is_refused(tmp_path: Path) -> None:
    folder = choose_folder(tmp_path, "ants-1", "r1")
    with pytest.raises(Conflict) as refused:
        Landing([], folder, "r2")
    assert refused.value.cause == Cause.FOLDER_FOREIGN


def test_a_place_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreFailed, match=r"`.*file/ants-1`") as refused:
        choose_folder(tmp_path / "file", "ants-1", "r1")
    assert refused.value.cause == Cause.DISK_REFUSED and isinstance(refused.value.__cause__, NotADirectoryError)


def test_files_that_the_disk_has_no_room_for_are_refused_before_any_is_brought(tmp_path: Path) -> None:
    """One small content under many names is as large as all of them, and a node names as many as it likes."""
    free = shutil.disk_usage(tmp_path).free
    many = [Entry(f"copy-{number}", sha256=sha256(b"x"), size_bytes=free // 4) for number in range(5)]
    with pytest.raises(StoreFailed) as refused:
        Landing(many, tmp_path / "outputs", "run-1").wanted()
    assert refused.value.cause == Cause.DISK_FULL
    assert not listing(tmp_path / "outputs")
