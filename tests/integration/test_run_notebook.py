"""A notebook as a run: live in the log, evicted and resumed, its copy with outputs downloaded."""

from __future__ import annotations

import json
from typing import Any

import pytest
from shell import Shell

TRAIN = [
    "%matplotlib inline\nimport json, os, time\nfrom pathlib import Path\nkept = Path('checkpoints/step.json')",
    "start = json.loads(kept.read_text())['step'] if kept.exists() else 0\nprint('starts at', start)",
    """for step in range(start, 40):
    time.sleep(0.25)
    part = kept.with_suffix('.part')
    part.write_text(json.dumps({'step': step + 1}))
    part.replace(kept)
    print(f'step {step + 1} loss: {1 / (step + 1):.4f}')
""",
    "Path('outputs/model.txt').write_text('40')\n{'steps': 40}",
]


def write_notebook(shell: Shell, name: str, cells: list[str]) -> None:
    code = [{"cell_type": "code", "source": cell, "metadata": {}, "outputs": []} for cell in cells]
    path = shell.folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": code}))


def outputs_of(shell: Shell, path: str) -> list[list[dict[str, Any]]]:
    return [cell["outputs"] for cell in json.loads((shell.folder / path).read_text())["cells"]]


@pytest.mark.heavy
def test_a_notebook_is_evicted_resumes_from_its_checkpoint_and_comes_back_with_its_outputs(shell: Shell) -> None:
    write_notebook(shell, "train.ipynb", TRAIN)
    running = shell.start("run", "train.ipynb", "--name", "moved")
    shell.wait_for(lambda: "step 6 " in shell.stoker("logs", "moved", code=None).stdout, "the sixth step")
    shell.wait_for(lambda: shell.facts("moved")["attempts"][0]["saved"], "a checkpoint to resume from")
    shell.stoker("evict", "moved", "--notice", "0")
    out, err = running.communicate(timeout=90)
    assert running.returncode == 0, out + err
    assert "`stoker init train.ipynb`" in err
    assert not (shell.folder / "stoker.yaml").exists()
    starts = [int(line.split()[-1]) for line in out.splitlines() if line.startswith("starts at")]
    assert starts[0] == 0 and 0 < starts[1] < 40 and "step 40 loss: 0.0250" in out
    assert (shell.folder / "outputs/moved/model.txt").read_text() == "40"
    cells = outputs_of(shell, "outputs/moved/train.ipynb")
    assert cells[1][0]["text"] == f"starts at {starts[1]}\n"
    assert cells[3][0]["data"]["text/plain"] == "{'steps': 40}"
    facts = shell.facts("moved")
    assert len(facts["attempts"]) == 2 and facts["metrics"]["loss"]["last"] == 0.025


def test_a_notebook_that_fails_says_which_cell_and_what_ran_before_is_in_its_copy(shell: Shell) -> None:
    write_notebook(shell, "work/train.ipynb", ["print('one')", "open('missing.csv')"])
    shell.job("python work/train.ipynb")
    done = shell.stoker("run", code=1)
    assert "one\n" in done.stdout and 'File "train.ipynb[2]", line 1' in done.stdout
    cells = outputs_of(shell, "outputs/job-1-failed/train.ipynb")
    assert cells[0][0]["text"] == "one\n" and cells[1][0]["ename"] == "FileNotFoundError"
    other = shell.stoker("run", "train.py", code=2)
    assert "not train.py" in other.stderr and "--set 'run=python train.py'" in other.stderr


def test_init_writes_a_job_for_a_notebook_and_packages_that_a_cell_installs_are_refused_at_once(shell: Shell) -> None:
    write_notebook(shell, "train.ipynb", ["!pip install no-such-package-xyz", "print('never')"])
    assert "wrote stoker.yaml for train.ipynb" in shell.stoker("init", "train.ipynb").stderr
    refused = shell.stoker("run", "train.ipynb", code=2)
    assert "environment: requirements.txt" in refused.stdout and "never" not in refused.stdout
