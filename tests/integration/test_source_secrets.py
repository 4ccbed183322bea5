"""No secret of the source folder reaches the store: real commands, and every byte that they have stored."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
from shell import Shell

from stoker.client.api.client import Client
from stoker.client.settings import from_environment
from stoker.errors import SnapshotRefused
from stoker.model.cause import Cause
from stoker.model.job.job import Job

VALUE = "correct-horse-battery-staple"
TOKEN = "gh" + "p_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"  # in two halves, so that no scanner reports it


def stored(shell: Shell, text: str) -> list[Path]:
    """Files of the home, store and database included, in which the text occurs."""
    return [path for path in shell.home.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]


@pytest.fixture
def project(shell: Shell) -> Shell:
    shell.write(".env", f"PASSWORD={VALUE}\n")
    shell.write("notes/setup.md", f"first\nuse {TOKEN}\n")
    shell.write("train.py", "import os; print(sorted(os.listdir('.')))\n")
    shell.job("python train.py")
    return shell


def test_a_run_leaves_secrets_here_and_says_so_first(project: Shell) -> None:
    told = project.stoker("run", "--name", "one")
    first, second, *_ = (line for line in told.stderr.splitlines() if not line.endswith("…"))
    assert first.endswith(": .env (environment variables), notes/setup.md:2 (GitHub token)")
    assert "echo '!.env' >> .stokerignore" in second and "`secrets:`" in second
    assert told.stdout == "['checkpoints', 'outputs', 'stoker.yaml', 'train.py']\n"
    assert TOKEN not in told.stderr and VALUE not in told.stderr
    assert not stored(project, VALUE) and not stored(project, TOKEN)


def test_plan_and_init_say_it_before_anything_is_sent(project: Shell) -> None:
    assert (
        "not uploaded" in project.stoker("plan").stdout
        and ".env (environment variables)" in project.stoker("plan").stdout
    )
    assert ".env (environment variables)" in project.stoker("init", "--force").stderr
    project.write("train.py", f"print('{TOKEN}')\n")
    told = project.stoker("init", "--force").stderr
    assert "train.py:1 (GitHub token)" in told and TOKEN not in told


def test_a_token_in_code_stops_the_run_and_nothing_is_sent(project: Shell) -> None:
    project.write("train.py", f"import os\nlogin = '{TOKEN}'\n")
    for command in ("run", "plan"):
        told = project.stoker(command, "--json", code=2)
        error = json.loads(told.stdout)["error"]
        assert error["cause"] == Cause.SECRET_FOUND and "train.py:2 (GitHub token)" in error["message"]
        assert TOKEN not in told.stderr + told.stdout
    assert not stored(project, TOKEN)
    project.write(".stokerignore", "!train.py\n")
    assert "train.py" in project.stoker("run").stderr
    assert stored(project, TOKEN)


def test_a_token_in_the_job_itself_is_refused_at_its_line(project: Shell) -> None:
    project.write("stoker.yaml", f"name: job\nrun: python train.py\nenv:\n  GITHUB: {TOKEN}\n")
    told = project.stoker("run", code=2)
    assert "stoker.yaml:4:11: env.GITHUB: found a secret (GitHub token)" in told.stderr
    assert TOKEN not in told.stderr
    assert not stored(project, TOKEN)


def test_settings_with_a_random_password_stay_here_and_code_with_one_stops_the_run(project: Shell) -> None:
    value = "q7" + "vX2kLm9!Rw4#Tz8pNc"
    project.write("config.yaml", f"model: resnet\ndatabase:\n  password: {value}\n")
    told = project.stoker("run", "--name", "one")
    first = next(line for line in told.stderr.splitlines() if not line.endswith("…"))
    assert "config.yaml:3 (value of `password`)" in first
    assert "config.yaml" not in told.stdout
    assert "config.yaml:3 (value of `password`)" in project.stoker("plan").stdout
    assert "config.yaml:3 (value of `password`)" in project.stoker("init", "--force").stderr
    assert not stored(project, value)
    code = "kJ8s7Hq2Lm9Xc4Vb1Nz6Pd3Rf5"
    project.write("train.py", f'api_key = "{code}"\n')
    assert "train.py:1 (value of `api_key`)" in project.stoker("run", code=2).stderr
    assert not stored(project, code)


def test_a_file_is_sent_on_purpose(project: Shell) -> None:
    project.write(".stokerignore", "!.env\n")
    told = project.stoker("run", "--name", "one")
    assert ".env (environment variables)" in told.stderr and ".stokerignore" in told.stderr
    assert "'.env'" in told.stdout


def test_a_program_is_warned_or_refused_alike(project: Shell) -> None:
    client = Client.connect(from_environment(project.environ))
    job = Job.read({"name": "job", "run": "python train.py"})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        client.submit(job, project.folder)
    assert any(".env (environment variables)" in str(one.message) for one in caught)
    project.write("train.py", f"print('{TOKEN}')\n")
    with pytest.raises(SnapshotRefused, match=r"train\.py:1"):
        client.submit(job, project.folder)
