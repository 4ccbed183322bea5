"""A script that does not find a file, or finds a folder that it wants to create, is told what to write."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.agent.attempt.endings import hint
from stoker.client.submit import jobfile
from stoker.model.job.job import Job

WORK = Path("/node/work")
CODE = {"train.py", "configs/base.yaml"}
NOT_THERE = "FileNotFoundError: [Errno 2] No such file or directory: "


def told(last: str, **job: object) -> str:
    tail = f'Traceback (most recent call last):\n  File "train.py", line 3\n{last}\n'
    return hint(tail.encode(), Job.read({"name": "a", "run": "python train.py", **job}), WORK, CODE)


@pytest.mark.parametrize(
    ("last", "line"),
    [
        (f"{NOT_THERE}'data/train.csv'", "data: {data: {path: data, at: data}}"),
        (f"{NOT_THERE}'train.bin'", "data: {train: {path: train.bin, at: train.bin}}"),
        (f"{NOT_THERE}'{WORK}/train.bin'", "data: {train: {path: train.bin, at: train.bin}}"),
        (f"{NOT_THERE}'../sets/a b.csv'", 'data: {a_b: {path: "../sets/a b.csv", at: "../sets/a b.csv"}}'),
        # the rest of the folder was uploaded
        (f"{NOT_THERE}'configs/big.yaml'", "data: {big: {path: configs/big.yaml, at: configs/big.yaml}}"),
        (f"[rank1]: {NOT_THERE}'data/x.npy'", "data: {data: {path: data, at: data}}"),
        ("FileNotFoundError: data/x.csv not found.", "data: {data: {path: data, at: data}}"),
        ("numpy.exceptions.FileNotFoundError: 'x.npz'", "data: {x: {path: x.npz, at: x.npz}}"),
        ("FileNotFoundError: Couldn't find a folder, but 'imgs/cats'", "data: {imgs: {path: imgs, at: imgs}}"),
    ],
)
def test_a_missing_file_comes_with_the_line_that_brings_it(last: str, line: str, tmp_path: Path) -> None:
    assert f"`{line}`" in told(last)
    (tmp_path / "stoker.yaml").write_text(f"name: a\nrun: python train.py\n{line}\n")
    (use,) = jobfile.read(tmp_path / "stoker.yaml").job.data.values()
    assert use.path == use.at


@pytest.mark.parametrize(
    "last",
    [
        f"{NOT_THERE}'/data/imagenet'",
        f"{NOT_THERE}'../../../../x/y'",
        f"{NOT_THERE}'..'",
        f"{NOT_THERE}''",
        "KeyError: 'train.csv'",
        "FileNotFoundError",
    ],
)
def test_what_cannot_be_brought_or_is_no_file_gets_no_line(last: str) -> None:
    assert told(last) == ""


@pytest.mark.parametrize(
    "last",
    [
        "FileExistsError: [Errno 17] File exists: 'results'",
        f"FileExistsError: [Errno 17] File exists: '{WORK}/results'",
        "ValueError: Output directory (results) already exists and is not empty.",
        "results/ exists, refusing to start",
    ],
)
def test_a_folder_that_should_not_be_there_comes_with_the_setting(last: str) -> None:
    assert "`create_folders: false`" in told(last, outputs="results")
    assert "`create_folders: false`" in told(last, checkpoints=["results"])
    again = told(last, outputs="results", checkpoints=["results"], create_folders=False)
    assert "`resume`" in again and "create_folders" not in again


def test_another_folder_that_exists_is_the_scripts_own() -> None:
    assert told("FileExistsError: [Errno 17] File exists: 'logs'", outputs="results") == ""


def test_what_the_script_writes_itself_is_no_input() -> None:
    assert told(f"{NOT_THERE}'results/best.pt'", outputs="results") == ""
    assert told(f"{NOT_THERE}'last.pt'", checkpoints=["last.pt"]) == ""
