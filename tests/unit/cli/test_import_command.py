from __future__ import annotations

import json
from pathlib import Path

import pytest

from stoker.cli import answer
from stoker.client.submit import jobfile

SCRIPT = "#!/bin/bash\n#SBATCH --job-name=ants --mail-type=END\nsrun python train.py\n"
JOB = "command: python train.py\ncode: src\ncompute: azureml:cpus\ntags: {a: b}\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.sbatch").write_text(SCRIPT, encoding="utf-8")
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "job.yml").write_text(JOB, encoding="utf-8")
    return tmp_path


def failed(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, str]:
    assert answer([*words, "--json"]) != 0
    error: dict[str, str] = json.loads(capsys.readouterr().out)["error"]
    return error


def test_import_writes_a_job_file_and_lists_what_has_no_counterpart(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert answer(["import", "slurm", "train.sbatch"]) == 0
    job = jobfile.read(folder / "stoker.yaml").job
    assert (job.name, job.run, job.on) == ("ants", "python train.py", "slurm")
    assert "train.sbatch:2: --mail-type=END" in capsys.readouterr().err


def test_the_job_file_of_a_job_elsewhere_has_its_paths(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(["import", "azureml", "jobs/job.yml", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["job"]["source"], told["job"]["on"]) == ("jobs/src", "cpus")
    assert [(one["file"], one["line"], one["what"]) for one in told["unmapped"]] == [("jobs/job.yml", 4, "tags")]
    assert answer(["import", "azureml", "jobs/job.yml", "--to", "jobs/stoker.yaml"]) == 0
    assert jobfile.read(folder / "jobs" / "stoker.yaml").job.source == "src"


def test_an_existing_job_file_is_replaced_only_when_told_to(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "stoker.yaml"
    path.write_text("mine", encoding="utf-8")
    assert failed(capsys, "import", "slurm", "train.sbatch")["cause"] == "file-exists"
    assert answer(["import", "slurm", "train.sbatch", "--stdout"]) == 0
    assert capsys.readouterr().out.startswith("# Written by")
    assert path.read_text(encoding="utf-8") == "mine"
    assert answer(["import", "slurm", "train.sbatch", "--force"]) == 0
    assert jobfile.read(path).job.name == "ants"


def test_nothing_is_written_from_a_file_that_is_wrong(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "wrong.sbatch").write_bytes(b"#!/bin/bash\n#SBATCH --job-name=\xff\n")
    assert failed(capsys, "import", "slurm", "wrong.sbatch")["code"] == "job-invalid"
    assert failed(capsys, "import", "slurm", "missing.sbatch")["code"] == "bad-input"
    assert failed(capsys, "import", "azureml", "jobs")["code"] == "bad-input"
    assert failed(capsys, "import", "azureml", "train.sbatch")["code"] == "job-invalid"
    assert failed(capsys, "import", "slurm", "train.sbatch", "--to", "jobs")["code"] in ("bad-input", "conflict")
    assert not (folder / "stoker.yaml").exists()
