"""Nothing that was committed is lost with a failed or cancelled run: another run continues from there."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from shell import Shell

from services import Azurite
from stoker.model.cause import Cause
from stoker.model.job.job import Job
from stoker.model.run.run import Attempt, AttemptState, Run
from stoker.model.snapshot import CheckpointSet, Entry, EntryKind
from stoker.model.wire import dump, load
from stoker.model.workspace import layout
from stoker.server.results.parcels import Heritage
from stoker.server.rounds.outside import Clock
from stoker.stores.opening import open_store

SCRIPT = """
import os, sys, time
from pathlib import Path

saved, outputs = Path("checkpoints/count"), Path(os.environ["STOKER_OUTPUTS"])
start = int(saved.read_text()) if saved.exists() else 0
print("begins at", start, flush=True)
for step in range(start + 1, 7):
    with open(outputs / f"step-{step}", "w") as file:
        file.write(str(step))
    saved.write_text(str(step))
    print("step", step, flush=True)
    while os.environ.get("HOLD") == str(step):
        time.sleep(0.1)
    time.sleep(0.3)
    if step == 4 and os.environ.get("BREAKS"):
        time.sleep(1.5)
        sys.exit("a bad day")
"""


def failed(shell: Shell, **job: Any) -> None:
    shell.write("train.py", SCRIPT)
    shell.job("python3 train.py", env={"BREAKS": "1"}, keep_failed="2s", **job)
    done = shell.stoker("run", "--name", "ants-7", code=1)
    assert "next: stoker resume ants-7" in done.stderr


def test_a_failed_run_is_resumed_as_a_new_run_with_its_checkpoint_and_outputs(shell: Shell) -> None:
    failed(shell)
    before = shell.facts("ants-7")
    done = shell.stoker("resume", "ants-7", "--set", "env={}", "--set", "retries=2")
    assert "begins at 4\nstep 5\nstep 6\n" in done.stdout
    facts = shell.facts("ants-7-r2")
    assert (facts["state"], facts["resumes"], facts["start"]["name"]) == ("succeeded", True, "ants-7")
    assert (facts["job"]["retries"], facts["job"]["keep_failed"], facts["rerun_of"]) == (2, None, "")
    landed = shell.folder / "outputs" / "ants-7-r2"
    assert sorted(one.name for one in landed.glob("step-*")) == [f"step-{number}" for number in range(1, 7)]
    same = {"kept_until": None, "version": 0}  # its node was released meanwhile
    assert {**shell.facts("ants-7"), **same} == {**before, **same}, "its end stays as it was"
    assert "resumes" in shell.stoker("show", "ants-7-r2").stdout
    assert "resumed by ants-7-r2" in shell.stoker("show", "ants-7").stdout
    assert shell.refused("resume", "ants-7-r2")["cause"] == Cause.RUN_SUCCEEDED


@pytest.mark.heavy
def test_a_run_that_resumes_another_is_resumed_itself_and_needs_neither(shell: Shell) -> None:
    failed(shell)
    shell.stoker("resume", "ants-7", "-d", "--set", "env.HOLD=5")
    shell.wait_for(lambda: "step 5" in shell.stoker("logs", "ants-7-r2", code=None).stdout, "its first step")
    shell.stoker("cancel", "ants-7-r2")
    assert shell.ended("ants-7-r2")["state"] == "cancelled"
    shell.stoker("release", "ants-7", code=None)
    shell.stoker("rm", "-y", "ants-7")
    done = shell.stoker("resume", "ants-7-r2", "--set", "env={}")
    assert done.stdout.splitlines()[-1] == "step 6"
    assert shell.facts("ants-7-r3")["start"]["name"] == "ants-7-r2"


def test_a_rerun_from_a_checkpoint_trains_further_and_takes_other_settings(shell: Shell) -> None:
    failed(shell)
    done = shell.stoker("rerun", "ants-7", "--from-checkpoint", "--set", "env.BREAKS=", "--name", "more", "--json")
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert told[-1]["run"]["state"] == "succeeded"
    facts = shell.facts("more")
    assert (facts["rerun_of"], facts["start"]["name"], facts["resumes"]) == ("ants-7", "ants-7", False)
    assert len(shell.stoker("logs", "more").stdout.splitlines()) == 3


def test_what_cannot_be_resumed_says_why(shell: Shell) -> None:
    shell.write("train.py", "import sys; sys.exit(3)")
    shell.job("python3 train.py")
    shell.stoker("run", "--name", "empty", code=3)
    refused = shell.refused("resume", "empty")
    assert refused["cause"] == Cause.NO_CHECKPOINT and "stoker rerun empty" in refused["hint"]
    assert "expected" in shell.stoker("resume", "empty", "--set", "retries=some", code=2).stderr


def test_a_checkpoint_is_copied_between_the_containers_of_two_runs(azurite: Azurite, tmp_path: Path) -> None:
    """On Azure each run has its own container, and that of the new run does not exist yet."""
    store = open_store(azurite.new_container(), azurite.account_key)
    job, now = Job(name="ants", run="true"), datetime.now(UTC)
    attempts = (Attempt(1, "k-1", AttemptState.LOST, now),)
    old = Run("0" * 19 + "1", "ants-1", 1, job, "s", "python3", now, attempts=attempts)
    data = b"weights"
    sha256 = hashlib.sha256(data).hexdigest()
    entry = Entry("checkpoints/w", EntryKind.FILE, sha256, len(data))
    store.put(layout.checkpoint_file(old.id, sha256), data)
    made = CheckpointSet(1, 1, now, (entry,), step=7.0).sealed
    store.put(layout.checkpoint_set(old.id, 1, 1), dump(made))
    stores: Any = SimpleNamespace(of=lambda _: store, open=lambda _: store)
    heritage = Heritage(stores, Clock(), tmp_path)
    new = replace(old, id="0" * 19 + "2", name="ants-1-r2", attempts=(), start=heritage.find(old, job))
    heritage.bring(new)
    assert store.get(layout.checkpoint_file(new.id, sha256)) == data
    found = load(CheckpointSet, store.get(layout.checkpoint_set(new.id, 0, 1)))
    assert (found.whole, found.step, found.entries) == (True, 7.0, (entry,))
