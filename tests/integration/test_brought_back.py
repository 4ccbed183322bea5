"""The model is downloaded, wherever a script leaves it."""

from __future__ import annotations

import json

import pytest
from shell import Shell

from stoker.model.cause import Cause

CHECKPOINTS = """
    import time
    from pathlib import Path
    Path("models").mkdir(exist_ok=True)
    for epoch in range(3):
        Path("models/last.pt").write_text(f"weights {epoch}")
        time.sleep(0.1)
"""
BESIDE = """
    from pathlib import Path
    Path("model.pt").write_text("weights")
    Path("data/raw").mkdir(parents=True)
    for number in range(3):
        Path(f"data/raw/{number}.bin").write_text("x" * 100)
    Path("__pycache__").mkdir()
    Path("__pycache__/a.pyc").write_text("x")
"""


@pytest.mark.parametrize("outputs", ["outputs", "models"], ids=["apart", "the same folder"])
def test_what_a_run_leaves_in_its_checkpoints_is_downloaded(shell: Shell, outputs: str) -> None:
    shell.write("train.py", CHECKPOINTS)
    shell.job("python train.py", checkpoints="models", outputs=outputs)
    ended = shell.stoker("run").stderr
    place = shell.folder / "outputs" / "job-1" / ("models/last.pt" if outputs == "outputs" else "last.pt")
    assert place.read_text() == "weights 2", ended
    assert "in outputs/job-1 (1 file, 9 B)" in ended and "no outputs" not in ended
    shell.stoker("fetch", "job-1", "--checkpoints", "--into", "elsewhere")
    assert (shell.folder / "elsewhere" / "job-1" / "models" / "last.pt").read_text() == "weights 2"


def test_the_newest_checkpoint_can_be_downloaded_during_the_run(shell: Shell) -> None:
    shell.write("train.py", CHECKPOINTS + "\n    time.sleep(60)\n")
    shell.job("python train.py", checkpoints="models")
    shell.stoker("run", "--detach")
    shell.wait_for(lambda: shell.facts("job-1")["checkpoint_files"], "a commit")
    shell.stoker("fetch", "job-1", "--checkpoints")
    assert (shell.folder / "outputs" / "job-1-running" / "models" / "last.pt").read_text().startswith("weights")
    shell.stoker("cancel", "job-1")


def test_what_a_script_leaves_elsewhere_is_named_and_can_be_fetched(shell: Shell) -> None:
    shell.write("train.py", BESIDE)
    shell.write("notes.txt", "of the source")
    shell.job("python train.py")
    ended = shell.stoker("run").stderr
    assert "no outputs" in ended
    assert "it wrote files outside its outputs: model.pt, data/ (3 files)" in ended
    assert "stoker fetch job-1 --stray" in ended and "notes.txt" not in ended and "pycache" not in ended
    told = json.loads(shell.stoker("fetch", "job-1", "--stray", "--only", "model.pt", "--json").stdout)
    assert told["files"] == ["model.pt"]
    assert (shell.folder / "outputs" / "job-1" / "model.pt").read_text() == "weights"
    assert not (shell.folder / "outputs" / "job-1" / "data").exists()
    shell.stoker("fetch", "job-1", "--stray")
    assert (shell.folder / "outputs" / "job-1" / "data" / "raw" / "2.bin").exists()
    assert shell.refused("fetch", "job-1", "--checkpoints")["cause"] == Cause.NO_CHECKPOINT


def test_a_checkpoint_that_came_too_late_is_not_said_not_to_have_been_left(shell: Shell) -> None:
    shell.write("train.py", 'open("models/last.pt", "w").write("x")\nraise SystemExit(3)\n')
    shell.job("python train.py", checkpoints="models")
    shell.stoker("run", code=3)
    told = shell.stoker("fetch", "job-1", "--checkpoints", code=None).stderr
    assert "it wrote none" not in told
    assert "none was committed in time. What a script writes within its last second may be half written" in told
