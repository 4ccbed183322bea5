"""What a job becomes once its data is in a store."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.client.datamark import DataUse
from stoker.client.datamoves import dataset_name, moved, moves
from stoker.errors import BadInput
from stoker.model.job import Job


def test_a_folder_becomes_a_dataset_that_appears_where_it_was(tmp_path: Path):
    job = Job(name="ants", run="python t.py ${data.images}", data={"images": {"path": "data", "at": "data"}})
    [given] = moved(job, {"images": "ants-images@1"}, [DataUse("images", str(tmp_path), local=True)]).data.values()
    assert (given.dataset, given.path, given.at) == ("ants-images@1", None, "data")


def test_a_single_file_is_named_inside_its_dataset(tmp_path: Path):
    (tmp_path / "labels.csv").write_text("1")
    uses = [DataUse("labels", str(tmp_path / "labels.csv"), local=True)]
    job = Job(name="ants", run="python t.py ${data.labels}", data={"labels": {"path": "x", "at": "../in/labels.csv"}})
    new = moved(job, {"labels": "ants-labels@1"}, uses)
    assert new.run == "python t.py ${data.labels}/labels.csv" and new.data["labels"].at == "../in"
    for at in ("labels.csv", "in/other.csv", "../labels.csv"):
        job = Job(name="ants", run="a", data={"labels": {"path": "x", "at": at}})
        with pytest.raises(BadInput, match="is a single file"):
            moved(job, {"labels": "ants-labels@1"}, uses)


def test_a_file_that_cannot_appear_where_it_is_expected_is_refused_before_it_is_sent(tmp_path: Path):
    class Server:
        def post(self, path: str, body: object) -> dict[str, list[str]]:
            assert path == "/v1/plan" and body
            return {"to_store": ["labels"]}

    (tmp_path / "labels.csv").write_text("1")
    job = Job(name="ants", run="a", data={"labels": {"path": "labels.csv", "at": "labels.csv"}})
    with pytest.raises(BadInput, match="is a single file"):
        moves(job, tmp_path, Server(), None)


def test_the_dataset_is_named_after_the_experiment_and_the_input():
    job = Job(name="ants-and-bees", run="a", data={"My_Images": {"path": "x"}})
    assert dataset_name(job, "My_Images") == "ants-and-bees-my_images"
    assert len(dataset_name(Job(name="a" * 60, run="a"), "b" * 60)) <= 80
