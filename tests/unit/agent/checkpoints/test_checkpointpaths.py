"""Folders, files and globs as checkpoints: what is saved, what is created, and what is restored."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.agent.checkpoints.commits import Checkpoints
from stoker.agent.checkpoints.folders.choosing import Care
from stoker.agent.checkpoints.folders.files import OpenForWriting, present
from stoker.agent.checkpoints.restoring import restore
from stoker.agent.machine.machine import NodeFolder
from stoker.model.job.job import Job
from stoker.model.job.sections import CheckpointPaths, is_folder
from stoker.model.orders import Orders
from stoker.model.wire import dump
from stoker.model.workspace import layout
from stoker.stores.folder.store import FolderStore


@pytest.mark.parametrize(
    ("named", "folder"),
    [
        ("checkpoints", True),
        ("models/v1.2", True),
        ("out.d/", True),
        (".cache", True),
        ("checkpoint.pth.tar", False),
        ("a/model.keras", False),
        ("*.pt", False),
        ("runs/*", False),
    ],
)
def test_a_name_without_a_suffix_or_with_a_slash_is_a_folder(named: str, folder: bool) -> None:
    assert is_folder(named) is folder
    assert Job.read({"name": "a", "run": "b", "checkpoints": named}).checkpoints == (named,)


@pytest.mark.parametrize(
    ("named", "path", "root"),
    [
        (["ckpt"], "ckpt/a/b.pt", "ckpt"),
        (["ckpt"], "ckpt2/a.pt", None),
        (["*.pt"], "a.pt", "a.pt"),
        (["*.pt"], "b/a.pt", None),
        (["**/*.pt"], "b/c/a.pt", "b/c/a.pt"),
        (["**/*.pt"], "a.pt", "a.pt"),
        (["logs/*/ckpt"], "logs/v1/ckpt/x/y", "logs/v1/ckpt"),
        (["*.pt"], ".hidden.pt", None),
        (["model.pt"], "checkpoints/x", "checkpoints"),  # the folder that `${checkpoints}` stands for
        (["a/", "a/b.pt"], "a/b.pt", "a"),
    ],
)
def test_what_a_path_belongs_to(named: list[str], path: str, root: str | None) -> None:
    assert CheckpointPaths(named).root(path) == root


def test_links_are_not_followed_by_a_glob(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "a.pt").touch()
    (tmp_path / "work" / "b.pt").touch()
    (tmp_path / "work" / "link").symlink_to(tmp_path / "elsewhere")
    assert present(tmp_path / "work", CheckpointPaths(["**/*.pt", "*/a.pt", "link/*.pt"])) == ["b.pt"]


def test_a_file_and_what_a_glob_matches_come_back_and_nothing_else(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "store")
    job = Job(name="a", run="b", checkpoints=("checkpoint.pth.tar", "logs/*/ckpt", "epoch-*.pt"))
    written = {"checkpoint.pth.tar": "1", "logs/v0/ckpt/x": "2", "epoch-3.pt": "3", "other.pt": "4"}

    def begin(attempt: int) -> tuple[Path, Checkpoints]:
        folder = NodeFolder(tmp_path / f"node-{attempt}")
        folder.work.mkdir(parents=True)
        orders = Orders("r", "a-1", attempt, 0, "key", job, "s", "python3")
        store.put(layout.orders("r", attempt, 0), dump(orders))
        (folder.work / "epoch-1.pt").write_text("of the source tree")
        found = restore(store, orders, folder, lambda *_: None)
        made = Checkpoints(
            store, orders, folder, lambda: (None, {}), lambda *_: None, open_files=lambda: OpenForWriting(set())
        )
        made.begin_from(found)
        return folder.work, made

    work, checkpoints = begin(1)
    (work / "epoch-1.pt").unlink()
    for path, text in written.items():
        (work / path).parent.mkdir(parents=True, exist_ok=True)
        (work / path).write_text(text)
    made = checkpoints.commit(Care.TRUSTING)
    assert made and [one.path for one in made.entries] == ["checkpoint.pth.tar", "epoch-3.pt", "logs/v0/ckpt/x"]

    work, _ = begin(2)
    back = {str(one.relative_to(work)): one.read_text() for one in work.rglob("*") if one.is_file()}
    assert back == {path: text for path, text in written.items() if path != "other.pt"}


def test_a_file_that_is_rewritten_all_the_time_is_committed(tmp_path: Path) -> None:
    """The rules for folders apply to a single file."""
    store, now = FolderStore(tmp_path / "store"), [100.0]
    job = Job(name="a", run="b", checkpoints=("last.pt",))
    orders = Orders("r", "a-1", 1, 0, "key", job, "s", "python3")
    work = tmp_path / "node" / "work"
    work.mkdir(parents=True)
    checkpoints = Checkpoints(
        store,
        orders,
        NodeFolder(work.parent),
        lambda: (None, {}),
        lambda *_: None,
        clock=lambda: now[0],
        open_files=lambda: OpenForWriting(set()),
    )
    checkpoints.begin_from(None)
    made = 0
    for number in range(40):
        (work / "last.pt").write_text("x" * (number + 1))
        for _ in range(3):
            now[0] += 0.2
            made += checkpoints.commit(Care.PATIENT) is not None
    assert made >= 3
