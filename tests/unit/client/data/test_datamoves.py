"""What a job becomes once its data is in a store."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.client.data.datasets import dataset_name, moved
from stoker.client.data.marks import DataUse
from stoker.model.job.job import DataInput, Job


def test_a_folder_becomes_a_dataset_that_appears_where_it_was(tmp_path: Path) -> None:
    job = Job(name="ants", run="python t.py ${data.images}", data={"images": DataInput(path="data", at="data")})
    [given] = moved(job, {"images": "ants-images@1"}, [DataUse("images", str(tmp_path), local=True)]).data.values()
    assert (given.dataset, given.path, given.at) == ("ants-images@1", None, "data")


@pytest.mark.parametrize("at", [None, "labels.csv", "in/other.csv", "../labels.csv"])
def test_a_single_file_stays_one_wherever_it_is_expected(at: str | None, tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text("1")
    uses = [DataUse("labels", str(tmp_path / "labels.csv"), local=True)]
    job = Job(name="ants", run="python t.py ${data.labels}", data={"labels": DataInput(path="x", at=at)})
    new = moved(job, {"labels": "ants-labels@1"}, uses)
    given = new.data["labels"]
    assert (given.dataset, given.file, given.at, new.run) == ("ants-labels@1", "labels.csv", at, job.run)


def test_the_dataset_is_named_after_the_experiment_and_the_input() -> None:
    job = Job(name="ants-and-bees", run="a", data={"My_Images": DataInput(path="x")})
    assert dataset_name(job, "My_Images") == "ants-and-bees-my_images"
    assert len(dataset_name(Job(name="a" * 60, run="a"), "b" * 60)) <= 80
