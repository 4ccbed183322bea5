"""What a script opens and a run would not have is said before anything is sent."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.agent.endings import Broken
from stoker.agent.placing import place
from stoker.client import opened
from stoker.client.preparation import prepare
from stoker.client.settings import from_environment
from stoker.model.job import Job
from stoker.model.orders import Orders

NANOGPT = """
import os
dataset = "shakespeare"
data_dir = os.path.join("data", dataset)
data = np.memmap(os.path.join(data_dir, "train.bin"), mode="r")
open("notes.txt")
open("out.txt", "w")
open("gone.txt")
"""


def told(tmp_path: Path, code: str, **job: object) -> list[str]:
    source = tmp_path / "project"
    for name in ("data/shakespeare/prepare.py", "data/shakespeare/train.bin", "notes.txt", "out.txt"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text("x")
    (tmp_path / "shared").mkdir(exist_ok=True)
    (tmp_path / "shared" / "corpus.txt").write_text("x")
    (source / ".gitignore").write_text("*.bin\nout.txt\n")
    (source / "train.py").write_text(code)
    given = Job(name="a", run="python train.py", **job)  # type: ignore[arg-type]
    prepared = prepare(given, source, from_environment({"STOKER_HOME": str(tmp_path / "home")}))
    return opened.missing(given, prepared.tree)


def test_a_file_that_an_ignore_file_leaves_out_is_named_with_the_line_that_brings_it(tmp_path: Path):
    [said] = told(tmp_path, NANOGPT)
    assert said == (
        "`data/shakespeare/train.bin`, which train.py opens, is not sent: an ignore file leaves it out. "
        "`data: {shakespeare: {path: data/shakespeare, at: data/shakespeare}}` brings it"
    )


def test_a_file_outside_of_the_source_is_named(tmp_path: Path):
    [said] = told(tmp_path, 'open("../shared/corpus.txt")')
    assert "it is outside of the source" in said and "path: ../shared/corpus.txt, at: corpus.txt" in said


def test_what_is_brought_or_sent_or_written_is_not_missing(tmp_path: Path):
    data = {"shakespeare": {"path": "data/shakespeare", "at": "data/shakespeare"}}
    assert told(tmp_path, NANOGPT, data=data) == []
    assert told(tmp_path, 'open("notes.txt")\nopen("out.txt", "w")\nopen("/etc/passwd")') == []


def test_an_input_appears_where_the_script_expects_it(tmp_path: Path):
    work, data = tmp_path / "work", tmp_path / "shakespeare"
    (work / "data" / "other").mkdir(parents=True)
    (work / "data" / "other" / "prepare.py").write_text("code")
    data.mkdir()
    (data / "train.bin").write_text("bytes")
    (data / "prepare.py").write_text("not taken")
    job = Job(name="a", run="b", data={"x": {"path": "x", "at": "data/new"}, "y": {"path": "y", "at": "data/other"}})
    orders = Orders("r", "a-1", 1, 0, "k", job, "s", "p", data={"x": str(data), "y": str(data)})
    place(work, orders)
    assert (work / "data/new/train.bin").read_text() == (work / "data/other/train.bin").read_text() == "bytes"
    assert (work / "data/other/prepare.py").read_text() == "code"
    with pytest.raises(Broken, match="there is a file of that name"):
        place(work, orders)
