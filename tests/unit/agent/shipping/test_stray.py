"""What a script leaves outside its outputs: found, bounded, and the likeliest first."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from stoker.agent.shipping import outputs
from stoker.model.job.job import Job
from stoker.model.orders import Orders
from stoker.model.snapshot import Snapshot
from stoker.model.wire import load
from stoker.model.workspace import layout
from stoker.stores.folder.store import FolderStore

JOB = Job(name="a", run="b", outputs="out", checkpoints=("ckpt", "*.ckpt"))
ORDERS = Orders("r", "a-1", 1, 0, "key", JOB, "s", "python3")


def write(work: Path, *paths: str, size: int = 10) -> None:
    for path in paths:
        (work / path).parent.mkdir(parents=True, exist_ok=True)
        (work / path).write_bytes(b"x" * size)


def test_new_and_rewritten_files_are_found_and_the_rest_is_not(tmp_path: Path) -> None:
    write(tmp_path, "train.py", "old.pt")
    since_ns = time.time_ns() + 10**9
    for path in (
        "data/a.gz",
        "out/model.pt",
        "ckpt/x",
        "last.ckpt",
        "__pycache__/a.pyc",
        ".cache/y",
        "log.txt",
        "m.pt",
    ):
        write(tmp_path, path)
    (tmp_path / "link").symlink_to("/etc/passwd")
    code = {"train.py", "old.pt"}
    assert [one.path for one in outputs.find(tmp_path, ORDERS, code, since_ns)] == ["m.pt", "log.txt", "data/a.gz"]
    write(tmp_path, "old.pt", size=11)
    found = outputs.find(tmp_path, ORDERS, code, (tmp_path / "old.pt").stat().st_mtime_ns)
    assert {"old.pt", "m.pt"} <= {one.path for one in found}


def test_what_is_too_much_is_named_but_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, work = FolderStore(tmp_path / "store"), tmp_path / "work"
    monkeypatch.setattr(outputs, "MOST_BYTES", 100)
    write(work, "a.pt", "data/1.gz", "data/2.gz", size=40)
    write(work, "huge.bin", size=500)
    told = outputs.ship(store, ORDERS, outputs.find(work, ORDERS, (), 0))
    assert told == outputs.StrayFiles(("a.pt", "huge.bin", "data/ (2 files)"), 2, 80)
    kept = load(Snapshot, store.get(layout.stray("r", 1)))
    assert [entry.path for entry in kept.entries] == ["a.pt", "data/1.gz"]


def test_nothing_left_is_nothing_told(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "store")
    assert outputs.ship(store, ORDERS, []) == outputs.StrayFiles()
    assert not list(store.list("runs"))
