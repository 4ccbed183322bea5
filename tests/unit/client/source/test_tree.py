"""A source folder becomes a snapshot, quickly, and what changed under way is noticed."""

from __future__ import annotations

import hashlib
import io
import json
import os
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from stoker.client.source import tree as module
from stoker.client.source.statindex import digest
from stoker.client.source.tree import largest_paths, scan, size_text
from stoker.errors import Missing, SnapshotRefused
from stoker.model.snapshot import Entry, EntryKind
from stoker.stores.trees.blobstream import read_blobs


def later() -> int:
    """A clock by which every file has been unchanged for long."""
    return time.time_ns() + 10**10


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def paths(root: Path, **options: object) -> list[str]:
    return [entry.path for entry in scan(root, **options).snapshot.entries]  # type: ignore[arg-type]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    root = tmp_path / "source"
    root.mkdir()
    (root / "train.py").write_bytes(b"print(1)\n")
    return root


@pytest.fixture
def index(tmp_path: Path) -> Path:
    return tmp_path / "home" / "trees" / "index.json"


def test_a_tree_is_its_files_links_and_empty_folders(source: Path) -> None:
    (source / "run.sh").write_bytes(b"#!/bin/sh\n")
    (source / "run.sh").chmod(0o755)
    (source / "pkg" / "déjà vu").mkdir(parents=True)
    (source / "pkg" / "déjà vu" / "日本.txt").write_bytes(b"")
    (source / "logs" / "old").mkdir(parents=True)
    (source / "latest").symlink_to("pkg/nowhere")
    assert scan(source).snapshot.entries == (
        Entry("latest", EntryKind.LINK, target="pkg/nowhere"),
        Entry("logs/old", EntryKind.FOLDER),
        Entry("pkg/déjà vu/日本.txt", EntryKind.FILE, sha256(b""), 0),
        Entry("run.sh", EntryKind.FILE, sha256(b"#!/bin/sh\n"), 10, executable=True),
        Entry("train.py", EntryKind.FILE, sha256(b"print(1)\n"), 9),
    )


def test_the_same_files_elsewhere_are_the_same_snapshot(source: Path, tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "train.py").write_bytes(b"print(1)\n")
    assert scan(source).snapshot.id == scan(tmp_path / "copy").snapshot.id


def test_links_are_kept_as_they_are_written_and_never_followed(source: Path) -> None:
    (source / "data").symlink_to("/usr")
    (source / "up").symlink_to("../../elsewhere")
    (source / "loop").symlink_to("loop")
    (source / "itself").symlink_to(".")
    links = {entry.path: entry.target for entry in scan(source).snapshot.entries if entry.kind is EntryKind.LINK}
    assert links == {"data": "/usr", "up": "../../elsewhere", "loop": "loop", "itself": "."}


def test_a_folder_whose_content_is_left_out_is_there_empty(source: Path) -> None:
    (source / ".gitignore").write_text("*.log\n")
    (source / "logs").mkdir()
    (source / "logs" / "a.log").touch()
    (source / "envs" / "venv").mkdir(parents=True)
    (source / "envs" / "venv" / "pyvenv.cfg").touch()
    assert paths(source) == [".gitignore", "envs", "logs", "train.py"]


def test_excluded_paths_are_left_out_at_the_top_only(source: Path) -> None:
    for path in ("outputs/model.bin", "pkg/outputs/keep.py", "results/run/x", "results/y"):
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        (source / path).touch()
    found = paths(source, exclude=["outputs", "./results/run/"])
    assert found == ["pkg/outputs/keep.py", "results/y", "train.py"]


def test_sockets_and_pipes_are_skipped(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(source)  # the path of a socket may only have about a hundred characters
    os.mkfifo("pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")
        assert paths(source) == ["train.py"]


def test_an_empty_source_is_an_empty_snapshot(tmp_path: Path) -> None:
    assert scan(tmp_path).snapshot.entries == ()


def test_a_source_that_is_not_a_folder_is_refused(source: Path) -> None:
    with pytest.raises(SnapshotRefused, match="nowhere`"):
        scan(source / "nowhere")
    with pytest.raises(SnapshotRefused, match=r"train\.py`") as refused:
        scan(source / "train.py")
    assert str(source) in refused.value.hint


def test_a_name_that_is_not_utf8_is_refused_and_shown(source: Path) -> None:
    os.close(os.open(os.fsencode(source) + b"/caf\xe9.txt", os.O_CREAT))
    with pytest.raises(SnapshotRefused, match=r"`caf\\xe9\.txt`"):
        scan(source)
    (source / ".stokerignore").write_text("caf*")
    assert paths(source) == [".stokerignore", "train.py"]


def test_a_link_to_a_name_that_is_not_utf8_is_refused_and_shown(source: Path) -> None:
    (source / "link").symlink_to(os.fsdecode(b"caf\xe9"))
    with pytest.raises(SnapshotRefused, match=r"`link.*caf\\xe9`"):
        scan(source)


@contextmanager
def without_privileges() -> Iterator[Path]:
    """A folder to work in, as someone to whom permissions apply even where the tests run as root."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def refusal_as_nobody(root: Path) -> SnapshotRefused:
    me = os.geteuid()
    if me == 0:
        os.seteuid(65534)
    try:
        with pytest.raises(SnapshotRefused) as refused:
            scan(root)
    finally:
        os.seteuid(me)
    return refused.value


def test_a_file_that_cannot_be_read_is_named_with_a_way_out() -> None:
    with without_privileges() as root:
        (root / "key.pem").touch()
        (root / "key.pem").chmod(0)
        refused = refusal_as_nobody(root)
    assert refused.message == "`key.pem` cannot be read: permission denied"
    assert ">> .stokerignore" in refused.hint
    assert "`echo 'key.pem' >> .stokerignore`" in refused.hint


def test_a_folder_that_cannot_be_read_is_named_with_a_way_out() -> None:
    with without_privileges() as root:
        (root / "private").mkdir(mode=0)
        refused = refusal_as_nobody(root)
    assert refused.message == "`private/` cannot be read: permission denied"
    assert "`echo 'private/' >> .stokerignore`" in refused.hint


def sparse(path: Path, size: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    os.truncate(path, size)


def test_a_tree_over_the_limit_is_refused_before_anything_is_read(source: Path, index: Path) -> None:
    sparse(source / "data" / "train.bin", 700_000_000_000)  # would take minutes to read
    sparse(source / "model.pt", 20_000_000)
    with pytest.raises(SnapshotRefused) as refused:
        scan(source, index=index)
    assert refused.value.message == (
        f"`{source}` contains 700 GB in 3 files, but at most 500 MB can be uploaded as code; the largest are\n"
        "    700 GB  data/train.bin\n"
        "     20 MB  model.pt\n"
        "       9 B  train.py"
    )
    assert "`echo 'data/train.bin' >> .stokerignore`" in refused.value.hint
    assert not index.exists()


def test_a_tree_just_within_its_limit_is_taken(source: Path) -> None:
    assert scan(source, limit_bytes=9).snapshot.size_bytes == 9
    with pytest.raises(SnapshotRefused):
        scan(source, limit_bytes=8)


def test_the_largest_paths_are_folders_where_no_file_stands_out() -> None:
    images = [(f"data/train/{number}.png", 10) for number in range(100)]
    other = [("data/val/a.png", 7), ("data/val/b.png", 5), ("ckpt/last.pt", 900), ("ckpt/log.txt", 1), ("a.py", 2)]
    assert largest_paths(images + other) == [
        ("data/train/", 1000),
        ("ckpt/last.pt", 900),
        ("data/val/a.png", 7),
        ("data/val/b.png", 5),
        ("a.py", 2),
        ("ckpt/log.txt", 1),
    ]
    assert len(largest_paths((f"{number}.bin", number) for number in range(50))) == 10


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (999_600, "1 MB"),
        (1_234_000, "1.23 MB"),
        (5e12, "5 TB"),
        (2e15, "2e+03 TB"),
    ],
)
def test_sizes_are_shown_with_three_digits(size: float, text: str) -> None:
    assert size_text(size) == text


def test_files_that_did_not_change_are_not_read_again(source: Path, index: Path) -> None:
    (source / "other.py").touch()
    scan(source, index=index, now_ns=later)
    rows = json.loads(index.read_bytes())
    rows["train.py"][4] = "f" * 64  # only the index can contain it
    index.write_text(json.dumps(rows))
    hashes = {entry.path: entry.sha256 for entry in scan(source, index=index).snapshot.entries}
    assert hashes == {"train.py": "f" * 64, "other.py": sha256(b"")}


def test_files_that_changed_are_read_again(source: Path, index: Path) -> None:
    scan(source, index=index, now_ns=later)
    times = (source / "train.py").stat()
    (source / "train.py").write_bytes(b"print(2)\n")
    os.utime(source / "train.py", ns=(times.st_atime_ns, times.st_mtime_ns))  # as some tools do
    (entry,) = scan(source, index=index).snapshot.entries
    assert entry.sha256 == sha256(b"print(2)\n")


def test_a_file_changed_within_a_tick_of_the_clock_is_read_again(source: Path, index: Path) -> None:
    file = source / "train.py"
    for number in range(300):
        file.write_bytes(b"%08d\n" % number)
        scan(source, index=index)
        file.write_bytes(b"%08d!" % number)
        (entry,) = scan(source, index=index).snapshot.entries
        assert entry.sha256 == sha256(b"%08d!" % number)


def test_times_without_fractions_need_two_seconds_of_rest(source: Path, index: Path) -> None:
    file = source / "train.py"
    written_s = file.stat().st_mtime_ns // 10**9
    os.utime(file, ns=(written_s * 10**9, written_s * 10**9))
    rested_ns = file.stat().st_ctime_ns + 10**9
    scan(source, index=index, now_ns=lambda: rested_ns)
    assert not index.exists()
    scan(source, index=index, now_ns=lambda: rested_ns + 2 * 10**9)
    assert list(json.loads(index.read_bytes())) == ["train.py"]


def test_files_that_are_gone_are_forgotten(source: Path, index: Path) -> None:
    (source / "old.py").touch()
    scan(source, index=index, now_ns=later)
    (source / "old.py").unlink()
    scan(source, index=index, now_ns=later)
    assert list(json.loads(index.read_bytes())) == ["train.py"]
    assert [file.name for file in index.parent.iterdir()] == [index.name]


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff\xfe", b"[]", b'{"train.py": 1}', b'{"train.py": []}', b'{"train.py": [9, 1, 1, 1, 5]}', b"null"],
)
def test_a_damaged_index_is_ignored(source: Path, index: Path, content: bytes) -> None:
    index.parent.mkdir(parents=True)
    index.write_bytes(content)
    (entry,) = scan(source, index=index, now_ns=later).snapshot.entries
    assert entry.sha256 == sha256(b"print(1)\n")
    assert json.loads(index.read_bytes())["train.py"][4] == entry.sha256


def test_an_index_that_cannot_be_written_does_no_harm(source: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert paths(source, index=tmp_path / "file" / "index.json", now_ns=later) == ["train.py"]
    (tmp_path / "folder").mkdir()
    assert paths(source, index=tmp_path / "folder", now_ns=later) == ["train.py"]


@contextmanager
def being_written(path: Path) -> Iterator[None]:
    """Someone writes to the file without a pause."""
    done, started = threading.Event(), threading.Event()

    def write() -> None:
        with path.open("r+b", buffering=0) as file:
            while not done.is_set():
                file.seek(0)
                file.write(os.urandom(64))
                started.set()

    writer = threading.Thread(target=write)
    writer.start()
    started.wait(10)
    try:
        yield
    finally:
        done.set()
        writer.join()


def test_a_file_that_never_holds_still_is_refused_by_name(source: Path) -> None:
    sparse(source / "train.log", 50_000_000)
    with (
        being_written(source / "train.log"),
        pytest.raises(SnapshotRefused, match=r"`train\.log`") as refused,
    ):
        scan(source)
    assert "add it to .stokerignore" in refused.value.hint


def test_blobs_can_be_opened_and_found_by_their_hash(source: Path) -> None:
    tree = scan(source)
    with tree.open(sha256(b"print(1)\n")) as file:
        assert file.read() == b"print(1)\n"
    assert tree.path(sha256(b"print(1)\n")) == source / "train.py"
    with pytest.raises(Missing):
        tree.open("0" * 64)


def test_missing_blobs_are_written_once_each(source: Path) -> None:
    contents = {"a.py": b"same", "b.py": b"same", "c.py": b"", "big.bin": os.urandom(600_000)}
    for path, data in contents.items():
        (source / path).write_bytes(data)
    stream = io.BytesIO()
    wanted = [sha256(contents[path]) for path in ("a.py", "b.py", "c.py", "big.bin")]
    stream.writelines(scan(source).stream(wanted))
    stream.seek(0)
    assert {name: blob.read() for name, blob in read_blobs(stream)} == {
        sha256(data): data for data in contents.values()
    }


@pytest.mark.parametrize("change", ["other", "shorter", "gone"])
def test_a_file_that_changed_after_the_scan_is_refused_by_name(source: Path, index: Path, change: str) -> None:
    tree = scan(source, index=index, now_ns=later)
    file = source / "train.py"
    if change == "gone":
        file.unlink()
    else:
        file.write_bytes({"other": b"print(2)\n", "shorter": b"print"}[change])
    with pytest.raises(SnapshotRefused, match=r"`train\.py` changed") as refused:
        list(tree.stream([sha256(b"print(1)\n")]))
    assert refused.value.hint == "retry"
    assert not index.exists()  # the next scan looks at everything


def test_a_file_that_only_grew_after_the_scan_is_sent_as_it_was(source: Path) -> None:
    tree = scan(source)
    (source / "train.py").write_bytes(b"print(1)\nprint(2)\n")
    stream = io.BytesIO()
    stream.writelines(tree.stream(tree.files))
    stream.seek(0)
    assert [blob.read() for _, blob in read_blobs(stream)] == [b"print(1)\n"]


def test_of_ten_thousand_files_only_the_one_that_changed_is_read(
    source: Path, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in range(100):
        (source / f"pkg{folder}").mkdir()
        for number in range(100):
            (source / f"pkg{folder}" / f"{number}.py").write_bytes(b"%d %d" % (folder, number))
    scan(source, index=index, now_ns=later)
    (source / "pkg50" / "50.py").write_bytes(b"changed")
    read: list[str] = []

    def counted(path: str, *see: Any) -> Any:
        read.append(path)
        return digest(path, *see)

    monkeypatch.setattr(module, "digest", counted)
    tree = scan(source, index=index)
    assert read == [str(source / "pkg50" / "50.py")]
    assert len(tree.snapshot.entries) == 10_001
    assert sha256(b"changed") in tree.files
