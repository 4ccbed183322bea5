from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from stoker.client.data import marks
from stoker.errors import JobInvalid
from stoker.model.job.job import Job


def job(**data: Any) -> Job:
    return Job.read({"name": "ants", "run": "python train.py", "data": data})


def test_a_folder_is_counted_with_everything_below_it(tmp_path: Path) -> None:
    (tmp_path / "images" / "deep").mkdir(parents=True)
    (tmp_path / "images" / "a").write_bytes(b"12345")
    (tmp_path / "images" / "deep" / "b").write_bytes(b"123")
    os.utime(tmp_path / "images" / "a", (0, 1_700_000_000))
    os.utime(tmp_path / "images" / "deep" / "b", (0, 1_600_000_000))
    (use,) = marks.look(job(x="images"), tmp_path)
    assert (use.where, use.files, use.size_bytes) == (str(tmp_path / "images"), 2, 8)
    assert use.mark == "2 files, 8 bytes, newest 2023-11-14T22:13:20+00:00"


def test_the_mark_changes_with_the_data(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    (before,) = marks.look(job(x="a"), tmp_path)
    (tmp_path / "a").write_bytes(b"12")
    (after,) = marks.look(job(x="a"), tmp_path)
    assert before.mark != after.mark


def test_a_url_or_a_dataset_is_left_to_the_server(tmp_path: Path) -> None:
    url, dataset = marks.look(job(x="s3://bucket/x", y={"dataset": "ants@3"}), tmp_path)
    assert (url.where, url.mark) == ("s3://bucket/x", "")
    assert (dataset.where, dataset.mark) == ("dataset ants@3", "")


def test_every_path_that_is_missing_is_named_with_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    with pytest.raises(JobInvalid) as caught:
        marks.look(job(x="imagse", y="/nowhere/at/all", z="images"), tmp_path)
    first, second = caught.value.problems
    assert (first.field, first.found, first.nearest) == ("data.x", "`imagse`", "images")
    assert (second.field, second.nearest) == ("data.y", "")


def test_an_empty_folder_and_a_link_in_circles_do_no_harm(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "loop").symlink_to(tmp_path / "d")
    (tmp_path / "d" / "dangling").symlink_to(tmp_path / "gone")
    (use,) = marks.look(job(x="d"), tmp_path)
    assert (use.files, use.counted) == (0, True)
