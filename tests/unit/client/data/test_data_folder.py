"""Which files of a folder become part of a dataset, and what is refused with a message."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from stoker.client.data.folder import clashes, hashes, look
from stoker.client.source.statindex import StatIndex
from stoker.errors import DatasetRefused


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "images"
    (root / "train" / "ants").mkdir(parents=True)
    (root / "train" / "ants" / "a.jpg").write_bytes(b"ant")
    (root / "train" / "bee.jpg").write_bytes(b"bee!")
    return root


def paths(root: Path, *, follow_links: bool = False) -> list[str]:
    return sorted(found.path for found in look(root, follow_links=follow_links))


def test_every_file_is_found_also_hidden_ignored_and_empty_ones(tree: Path) -> None:
    (tree / ".gitignore").write_text("*")
    (tree / ".hidden").mkdir()
    (tree / ".hidden" / "x").touch()
    (tree / "with space ünï 漢.txt").touch()
    (tree / "empty folder").mkdir()
    assert paths(tree) == [
        ".gitignore", ".hidden/x", "train/ants/a.jpg", "train/bee.jpg", "with space ünï 漢.txt",
    ]  # fmt: skip


def test_a_single_file_is_a_dataset_of_one_under_its_own_name(tree: Path) -> None:
    (tree / "link.jpg").symlink_to(tree / "train" / "bee.jpg")
    assert paths(tree / "train" / "bee.jpg") == ["bee.jpg"]
    assert paths(tree / "link.jpg") == ["link.jpg"]


def test_a_path_of_a_thousand_characters_is_taken(tree: Path) -> None:
    deep = tree
    for _ in range(10):
        deep = deep / ("d" * 99)
    deep.mkdir(parents=True)
    (deep / "x").touch()
    assert max(map(len, paths(tree))) == 1001


def test_links_inside_are_what_they_point_to(tree: Path) -> None:
    (tree / "val").symlink_to("train")
    (tree / "best.jpg").symlink_to(tree / "train" / "bee.jpg")
    assert paths(tree) == [
        "best.jpg", "train/ants/a.jpg", "train/bee.jpg", "val/ants/a.jpg", "val/bee.jpg",
    ]  # fmt: skip


def test_the_folder_itself_may_be_a_link(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "current").symlink_to(tree)
    assert paths(tmp_path / "current") == ["train/ants/a.jpg", "train/bee.jpg"]


def test_a_link_out_of_the_tree_is_refused_unless_it_is_asked_for(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "images-secret").write_text("secret")  # the same beginning as the folder's own path
    (tree / "out").symlink_to(tmp_path / "images-secret")
    with pytest.raises(DatasetRefused, match="`out`") as refused:
        look(tree)
    assert "--follow-links" in refused.value.hint
    assert "out" in paths(tree, follow_links=True)


def test_a_link_in_a_circle_and_a_link_to_nothing_are_refused(tree: Path) -> None:
    (tree / "train" / "again").symlink_to(tree)
    with pytest.raises(DatasetRefused, match="again`"):
        look(tree)
    (tree / "train" / "again").unlink()
    (tree / "nothing").symlink_to("nowhere")
    with pytest.raises(DatasetRefused, match="`nothing`"):
        look(tree)


def test_a_pipe_is_refused_and_not_waited_for(tree: Path) -> None:
    os.mkfifo(tree / "pipe")
    with pytest.raises(DatasetRefused, match="`pipe`"):
        look(tree)


def test_an_empty_tree_and_one_that_is_not_there_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    with pytest.raises(DatasetRefused, match="contains no files"):
        look(tmp_path / "a")
    with pytest.raises(DatasetRefused, match="no such file or directory"):
        look(tmp_path / "c")


def test_a_name_that_is_not_text_is_refused(tree: Path) -> None:
    (Path(os.fsdecode(os.fsencode(tree) + b"/\xff.jpg"))).touch()
    with pytest.raises(DatasetRefused, match=r"`\\xff\.jpg`"):
        look(tree)


def test_names_that_collide_elsewhere_are_reported() -> None:
    assert clashes(["a.jpg", "b.jpg", "A.jpg"]) == ["on macOS and Windows `A.jpg` and `a.jpg` are the same file"]
    assert len(clashes(["caf\u00e9", "cafe\u0301"])) == 1
    assert clashes(["a/x", "A/y"]) == []
    assert len(clashes([f"{letter}{case}" for letter in "abcdefg" for case in "xX"])) == 4


def test_only_files_that_changed_are_read_again(tree: Path, tmp_path: Path) -> None:
    for path in tree.rglob("*.jpg"):
        os.utime(path, ns=(10**18 + 1, 10**18 + 1))
    read: list[int] = []

    def scan() -> dict[str, str]:
        read.clear()
        index = StatIndex(tmp_path / "index")
        return {found.path: sha256 for found, sha256 in hashes(look(tree), index, lambda size, _: read.append(size))}

    time.sleep(0.06)  # files that have just been written are not trusted
    first = scan()
    assert sorted(read) == [3, 4]
    assert scan() == first
    assert read == []
    (tree / "train" / "bee.jpg").write_bytes(b"wasp")
    second = scan()
    assert read == [4]
    assert {path for path in first if first[path] != second[path]} == {"train/bee.jpg"}


def test_a_file_that_cannot_be_read_is_refused(tree: Path, tmp_path: Path) -> None:
    (tree / "mem").symlink_to("/proc/self/mem")  # opens, and cannot be read at its start
    found = look(tree, follow_links=True)
    with pytest.raises(DatasetRefused, match="`mem`"):
        list(hashes(found, StatIndex(None), lambda *_: None))
