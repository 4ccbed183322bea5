"""Files that a script opens and a run would lack are reported before anything is uploaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.agent.attempt.endings import AttemptBroken
from stoker.agent.machine.machine import NodeFolder
from stoker.agent.processes.launch import levels_above, place_inputs
from stoker.client.script import opened
from stoker.client.settings import from_environment
from stoker.client.submit.jobfile import read_text
from stoker.client.submit.preparation import prepare
from stoker.errors import JobInvalid
from stoker.model.job.job import DataInput, Job
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


def told(tmp_path: Path, code: str, ignored: str = "", **job: object) -> list[str]:
    source = tmp_path / "project"
    for name in ("data/shakespeare/prepare.py", "data/shakespeare/train.bin", "notes.txt", "out.txt"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text("x")
    (tmp_path / "shared").mkdir(exist_ok=True)
    (tmp_path / "shared" / "corpus.txt").write_text("x")
    (source / ".gitignore").write_text(f"*.bin\nout.txt\n{ignored}")
    (source / "train.py").write_text(code)
    given = Job(**{"name": "a", "run": "python train.py", **job})  # type: ignore[arg-type]
    prepared = prepare(given, source, from_environment({"STOKER_HOME": str(tmp_path / "home")}))
    return opened.missing(given, prepared.tree)


def test_a_file_that_an_ignore_file_leaves_out_is_named_with_the_line_that_brings_it(tmp_path: Path) -> None:
    [said] = told(tmp_path, NANOGPT)
    assert said == (
        "`data/shakespeare/train.bin`, which train.py opens, is not uploaded: an ignore file excludes it. "
        "`data: {shakespeare: {path: data/shakespeare, at: data/shakespeare}}` adds it"
    )


def test_a_module_that_an_ignore_file_leaves_out_is_named(tmp_path: Path) -> None:
    (tmp_path / "project" / "models").mkdir(parents=True)
    (tmp_path / "project" / "models" / "net.py").write_text("x = 1\n")
    (tmp_path / "project" / "here.py").write_text("x = 1\n")
    code = "import here, os\nfrom models.net import Net\n"
    assert told(tmp_path, code) == []
    assert told(tmp_path, code, ignored="models/\n") == [
        "`models/net.py`, which train.py imports, is not uploaded: an ignore file excludes it. "
        "`data: {models: {path: models, at: models}}` adds it"
    ]
    assert told(tmp_path, code, ignored="here.py\n", data={"here": {"path": "here.py", "at": "here.py"}}) == []


@pytest.mark.parametrize(
    "path",
    [
        '"../shared/corpus.txt"',
        'Path(__file__).resolve().parent.parent / "shared" / "corpus.txt"',
        'Path(__file__).resolve().parents[1] / "shared/corpus.txt"',
        'os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "shared", "corpus.txt")',
    ],
)
def test_a_file_outside_of_the_source_is_named(tmp_path: Path, path: str) -> None:
    [said] = told(tmp_path, f"open({path})")
    assert (
        "it is outside the source" in said and "corpus: {path: ../shared/corpus.txt, at: ../shared/corpus.txt}" in said
    )


@pytest.mark.parametrize("name", ["a, b", "2024", "x y: z", "{x}", "null", "my data"])
def test_a_folder_of_any_name_is_brought_by_a_line_that_a_job_file_can_have(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "project" / name
    folder.mkdir(parents=True)
    (folder / "x.bin").write_text("x")
    [said] = told(tmp_path, f'open("{name}/x.bin")')
    line = said.split(". `", 1)[1].removesuffix("` adds it")
    read = read_text(f"name: a\nrun: python train.py\n{line}\n", tmp_path / "stoker.yaml", []).job
    assert [(use.path, use.at) for use in read.data.values()] == [(name, name)]


@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        ("--corpus ../shared/corpus.txt", "../shared/corpus.txt"),
        ("--bin=data/shakespeare/train.bin", "data/shakespeare/train.bin"),
        ("data.path=../shared", "../shared"),
        ("../shared --epochs 3", "../shared"),
    ],
)
def test_what_the_command_gives_to_the_script_is_named(tmp_path: Path, arguments: str, path: str) -> None:
    [said] = told(tmp_path, "import sys", run=f"python train.py {arguments}")
    assert said.startswith(f"`{path}`, which train.py opens, is not uploaded")


@pytest.mark.parametrize("arguments", ["--out out.txt", "--log-dir=../shared", "--x notes.txt", "--y ${outputs}", "-v"])
def test_where_a_script_is_told_to_write_is_not_missing(tmp_path: Path, arguments: str) -> None:
    assert told(tmp_path, "import sys", run=f"python train.py {arguments}") == []


def test_a_file_too_far_above_the_source_is_named_without_a_line_that_would_be_refused(tmp_path: Path) -> None:
    (tmp_path / "far.txt").write_text("x")
    [said] = told(tmp_path / "a/b/c", 'open("../../../../far.txt")')
    assert "`../../../../far.txt`" in said and "data:" not in said and "Move it" in said


def test_names_that_no_file_can_have_are_passed_over(tmp_path: Path) -> None:
    assert told(tmp_path, 'open("a\\0b")\nopen("../" + "x" * 300)\nopen("../%s")' % ("x" * 190 + "y" * 7)) == []


def test_several_files_of_a_folder_outside_are_brought_as_that_folder(tmp_path: Path) -> None:
    code = 'import os\nROOT = "../shared"\nopen(os.path.join(ROOT, "corpus.txt"))\nopen(ROOT + "/words.txt")'
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "words.txt").write_text("x")
    [said] = told(tmp_path, code)
    assert "`data: {shared: {path: ../shared, at: ../shared}}` adds it" in said


def test_files_that_a_module_of_the_script_opens_are_named_with_it(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "dataset.py").write_text("def read(path):\n    return open(path)\n")
    [said] = told(tmp_path, 'from dataset import read\nread("data/shakespeare/train.bin")')
    assert "which dataset.py opens" in said


def test_what_is_brought_or_sent_or_written_is_not_missing(tmp_path: Path) -> None:
    data = {"shakespeare": {"path": "data/shakespeare", "at": "data/shakespeare"}}
    assert told(tmp_path, NANOGPT, data=data) == []
    assert told(tmp_path, 'open("notes.txt")\nopen("out.txt", "w")\nopen("/etc/passwd")') == []


def test_an_input_appears_where_the_script_expects_it(tmp_path: Path) -> None:
    work, data = tmp_path / "work", tmp_path / "shakespeare"
    (work / "data" / "other").mkdir(parents=True)
    (work / "data" / "other" / "prepare.py").write_text("code")
    data.mkdir()
    (data / "train.bin").write_text("bytes")
    (data / "prepare.py").write_text("not taken")
    job = Job(
        name="a", run="b", data={"x": DataInput(path="x", at="data/new"), "y": DataInput(path="y", at="data/other")}
    )
    orders = Orders("r", "a-1", 1, 0, "k", job, "s", "p", data={"x": str(data), "y": str(data)})
    place_inputs(work, orders)
    assert levels_above(job) == 0
    assert (work / "data/new/train.bin").read_text() == (work / "data/other/train.bin").read_text() == "bytes"
    assert (work / "data/other/prepare.py").read_text() == "code"
    with pytest.raises(AttemptBroken, match="`at: data/"):
        place_inputs(work, orders)


def test_an_input_may_appear_beside_the_working_directory(tmp_path: Path) -> None:
    folder, data = NodeFolder(tmp_path / "node"), tmp_path / "corpus"
    data.mkdir()
    (data / "train.csv").write_text("1,2")
    job = Job(name="a", run="b", data={"x": DataInput(path="x", at="../../data"), "y": DataInput(path="y", at="../y")})
    orders = Orders("r", "a-1", 1, 0, "k", job, "s", "p", data={"x": str(data), "y": str(data / "train.csv")})
    folder.deepen(levels_above(job))
    folder.make({})
    place_inputs(folder.work, orders)
    assert (folder.work / "../../data/train.csv").read_text() == (folder.work / "../y").read_text() == "1,2"
    assert sorted(one.name for one in folder.tree.iterdir()) == ["data", "source"]
    folder.clear()
    assert not folder.tree.exists() and (data / "train.csv").exists()


@pytest.mark.parametrize("at", ["../../../../data", "..", "../..", "data/../../x", "/data", "../data/../../.."])
def test_an_input_cannot_appear_further_up(at: str) -> None:
    with pytest.raises(JobInvalid, match="at most 3 folders above"):
        Job(name="a", run="b", data={"x": DataInput(path="x", at=at)})


def test_a_folder_that_is_left_out_of_the_code_still_appears_where_it_was(tmp_path: Path) -> None:
    for name in ("data/a", "outputs/ants-1", "checkpoints/old"):
        (tmp_path / name).mkdir(parents=True)
    data = {"a": "data/a", "earlier": "outputs/ants-1", "old": "checkpoints/old"}
    run = "python t.py " + " ".join(f"${{data.{name}}}" for name in data)
    (tmp_path / "t.py").touch()
    prepared = prepare(
        Job.read({"name": "a", "run": run, "data": data}),
        tmp_path,
        from_environment({"STOKER_HOME": str(tmp_path / "h")}),
    )
    assert {name: use.at for name, use in prepared.job.data.items() if use.at} == {"a": "data/a"}


def test_a_file_that_lies_beside_the_script_and_not_where_it_runs_is_reported(tmp_path: Path) -> None:
    (tmp_path / "project" / "sub").mkdir(parents=True)
    (tmp_path / "project" / "sub" / "config.json").write_text("{}")
    (tmp_path / "project" / "sub" / "train.py").write_text("open('config.json')")
    [said] = told(tmp_path, "", run="python sub/train.py")
    assert said == (
        "`config.json`, which sub/train.py opens, is in `sub`, and the command runs in the folder of the job file. "
        "`run: cd sub && python train.py` starts it there"
    )
    assert told(tmp_path, "", run="cd sub && python train.py") == []
