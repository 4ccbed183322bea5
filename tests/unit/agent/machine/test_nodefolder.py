"""A node's folder is removed completely, whatever its script did to it."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stoker.agent.machine.machine import remove_tree


def nest(top: Path, depth: int) -> None:
    """Folders in folders, as a script makes them that changes into each: no path is long enough to name the last."""
    here = os.open(top, os.O_RDONLY)
    for number in range(depth):
        os.mkdir("nested-folder", dir_fd=here)
        inner = os.open("nested-folder", os.O_RDONLY, dir_fd=here)
        if number % 100 == 0:
            os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=inner))
        os.close(here)
        here = inner
    os.close(here)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


def test_folders_nested_deeper_than_python_calls_or_a_path_names_are_removed(work: Path) -> None:
    nest(work, 2 * sys.getrecursionlimit())
    remove_tree(work)
    assert not work.exists()


def test_folders_that_their_script_closed_are_removed_and_what_links_lead_to_is_not(work: Path) -> None:
    inner = work / "closed" / "inner"
    inner.mkdir(parents=True)
    (inner / "file").write_text("x")
    outside = work.parent / "outside"
    outside.mkdir(mode=0o755)
    (outside / "kept").write_text("mine")
    (inner / "link").symlink_to(outside)
    (work / "link").symlink_to(outside)
    for folder in (inner, inner.parent, work):
        folder.chmod(0)
    remove_tree(work)
    assert not work.exists()
    assert ((outside / "kept").read_text(), outside.stat().st_mode & 0o777) == ("mine", 0o755)


def test_a_link_or_a_file_in_the_place_of_a_folder_is_removed_and_nothing_is_fine(work: Path) -> None:
    (work / "file").write_text("x")
    (work.parent / "link").symlink_to(work)
    remove_tree(work.parent / "link")
    assert (work / "file").exists()
    remove_tree(work / "file")
    remove_tree(work / "file")
    assert list(work.parent.rglob("*")) == [work]


def test_several_may_remove_the_same_folder_at_once(work: Path) -> None:
    for number in range(60):
        (work / f"a{number}" / "b" / "c").mkdir(parents=True)
    with ThreadPoolExecutor(4) as pool:
        done = [pool.submit(remove_tree, work) for _ in range(4)]
    assert [one.exception() for one in done] == [None] * 4
    assert not work.exists()
