"""The job that a command line names by a script."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.cli.commands.start import jobsource
from stoker.errors import BadInput


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pkg").mkdir()
    for name in ("train.py", "other.py", "pkg/fit.py", "my eval.py"):
        (tmp_path / name).write_text("print(1)\n")
    return tmp_path


@pytest.mark.parametrize(
    ("run", "script"),
    [
        ("python train.py --lr 1", "train.py"),
        ("python ./train.py", "train.py"),
        ("python train.py", "./train.py"),
        ("torchrun --nproc-per-node 2 train.py", "train.py"),
        ("python -m pkg.fit", "pkg/fit.py"),
    ],
)
def test_a_script_that_the_job_file_runs_stands_for_that_job(folder: Path, run: str, script: str) -> None:
    (folder / "stoker.yaml").write_text(f"name: a\nrun: {run}\n")
    assert jobsource.read(script, (), "").job.run == run


@pytest.mark.parametrize(
    ("script", "line"), [("other.py", "run=python other.py"), ("my eval.py", "'\"'\"'my eval.py'\"'\"'")]
)
def test_a_job_file_for_another_script_is_reported_with_a_command_that_works(
    folder: Path, script: str, line: str
) -> None:
    (folder / "stoker.yaml").write_text("name: a\nrun: python train.py\n")
    with pytest.raises(BadInput, match="runs `") as caught:
        jobsource.read(script, (), "")
    assert line in caught.value.hint
