"""`stoker env` and what it works with: on this computer, and between two machines of the twin."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from shell import Shell

from stoker.model.cause import Cause

pytestmark = [pytest.mark.timeout(600), pytest.mark.heavy]
TELL = "python3 -c 'import six, sys; print(six.__version__, sys.prefix)'"


@pytest.fixture
def twin(tmp_path: Path) -> Iterator[Shell]:
    (tmp_path / "project").mkdir()
    keep = {name: os.environ[name] for name in os.environ if not name.startswith(("STOKER_", "PYTHON"))}
    shell = Shell(tmp_path / "home", tmp_path / "project", {**keep, "STOKER_HOME": str(tmp_path / "home")})
    yield shell
    shell.stoker("server", "stop", code=None)
    shell.stoker("twin", "down", "--forget", code=None)
    shell.wait_for(lambda: not shell.processes(), "everything to be gone")


def known(shell: Shell, *words: str) -> Any:
    return json.loads(shell.stoker("env", *words, "--json").stdout)


def test_a_machine_restores_what_another_machine_has_built(twin: Shell) -> None:
    """With the token of its own run, in a container of Azure's that only this person's nodes reach."""
    twin.write("requirements.txt", "six==1.16.0\n")
    twin.job(TELL, environment="requirements.txt")
    for name in ("first", "second"):
        ran = twin.stoker("run", "--on", "azure", "--twin", "--name", name, patience_s=240.0)
        assert ran.stdout.startswith("1.16.0 /var/lib/stoker/environments/")
        (one,) = known(twin, "ls")["environments"]
        assert one["store"] == "twin"
        assert one["built"]["packages"]["six"] == "1.16.0"
        if name == "first":
            built = one
    assert one == built, "the second machine has not built it again"
    first, second = twin.facts("first"), twin.facts("second")
    assert first["environment"] == second["environment"] == built["built"]["id"]
    assert known(twin, "show", "job")["runs"] == ["second", "first"]
    known(twin, "rm", built["ref"], "--yes")
    assert known(twin, "ls")["environments"] == []


def test_environments_are_listed_compared_locked_and_deleted(shell: Shell) -> None:
    shell.write("requirements.txt", "six==1.16.0\n")
    shell.job(TELL, environment="requirements.txt")
    shell.stoker("env", "build")
    (one,) = known(shell, "ls")["environments"]
    assert (one["built"]["name"], one["built"]["source"], one["store"]) == ("job", "requirements.txt", "")
    shell.stoker("run", "--name", "old")
    assert shell.facts("old")["environment"] == one["built"]["id"], "it was built before"
    assert {"cpu", "libc", "kernel"} <= shell.facts("old")["system"].keys()
    shell.write("requirements.txt", "six==1.17.0\n")
    shell.stoker("run", "--name", "new")
    found = known(shell, "diff", "old", "new")
    assert found["packages"] == [{"name": "six", "first": "1.16.0", "second": "1.17.0"}]
    assert known(shell, "diff", one["ref"], "old")["same"]
    shell.stoker("env", "freeze", "old", "-o", "old.lock")
    assert "six==1.16.0 \\\n    --hash=sha256:" in (shell.folder / "old.lock").read_text()
    assert "six==1.17.0" in known(shell, "lock")["lock"]
    assert shell.refused("env", "show", "nothing")["cause"] == Cause.NO_SUCH_ENVIRONMENT
    known(shell, "rm", one["ref"], "--yes")
    assert one["ref"] not in [each["ref"] for each in known(shell, "ls")["environments"]]


def test_a_rerun_in_the_exact_environment_has_what_the_run_really_had(shell: Shell) -> None:
    """Of a run with a Python of this computer, whose packages have changed since."""
    python = shell.folder.parent / "venv" / "bin" / "python"
    uv = str(Path(sys.executable).with_name("uv"))
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, str(python.parent.parent)], check=True)
    install = [uv, "pip", "install", "--quiet", "--python", str(python)]
    subprocess.run([*install, "six==1.16.0"], check=True)
    shell.job("python -c 'import six; print(six.__version__)'", environment={"python": str(python)})
    assert shell.stoker("run", "--name", "old").stdout == "1.16.0\n"
    subprocess.run([*install, "six==1.17.0"], check=True)
    assert shell.stoker("rerun", "old", "--name", "same").stdout == "1.17.0\n"
    assert shell.stoker("rerun", "old", "--exact-environment", "--name", "exact").stdout == "1.16.0\n"
    assert known(shell, "diff", "old", "exact")["same"]
