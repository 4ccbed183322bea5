"""`stoker run --on azure --twin` on a computer where nothing is set up: real processes, through the command alone."""

from __future__ import annotations

import hashlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from azuretwin import BOTH_WEATHERS, served, weather
from shell import Shell

from stoker.model.cause import Cause

pytestmark = [pytest.mark.timeout(600)]
PATIENCE_S = 240.0  # machines are refused in hostile weather, and each is requested again after half a minute

# As unprepared for evictions as scripts are: it only writes its state where it always did.
TRAIN = """
    import hashlib, json, os, sys, time
    from pathlib import Path

    place = Path(os.environ["STOKER_CHECKPOINTS"], "state.json")
    state = json.loads(place.read_text()) if place.exists() else {"step": 0, "weights": "0"}
    while state["step"] < int(os.environ["STEPS"]):
        time.sleep(0.1)
        weights = hashlib.sha256(state["weights"].encode()).hexdigest()
        state = {"step": state["step"] + 1, "weights": weights}
        part = place.with_suffix(".part")
        part.write_text(json.dumps(state))
        part.replace(place)
        print(json.dumps({"step": state["step"], "loss": 1 / state["step"]}), flush=True)
        if str(state["step"]) == os.environ.get("FAILS_AT"):
            time.sleep(3)
            sys.exit("a bad day")
    Path(os.environ["STOKER_OUTPUTS"], "model.txt").write_text(state["weights"])
"""


@pytest.fixture(scope="module", params=BOTH_WEATHERS)
def shell(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    root = tmp_path_factory.mktemp("rehearsal")
    (root / "project").mkdir()
    keep = {name: os.environ[name] for name in os.environ if not name.startswith(("STOKER_", "PYTHON"))}
    shell = Shell(root / "home", root / "project", {**keep, "STOKER_HOME": str(root / "home")})
    shell.write("train.py", TRAIN)
    if request.param == "hostile":
        shell.stoker("twin", "up", *weather(request))
    yield shell
    shell.stoker("server", "stop", code=None)
    shell.stoker("twin", "down", "--forget", code=None)
    shell.wait_for(lambda: not shell.processes(), "everything to be gone")


def job(shell: Shell, steps: int, **env: str) -> None:
    shell.job("python3 train.py", spot=True, env={"STEPS": str(steps), **env})


class Rehearsal:
    """`stoker run --on azure --twin` in the foreground: its lines, and its last output."""

    def __init__(self, shell: Shell, name: str, *more: str) -> None:
        self._said = shell.folder.parent / f"{name}.txt"  # not in the project, where it would be part of the code
        with self._said.open("w") as said:
            words = more or ("run", "--on", "azure", "--twin", "--name", name)
            self.process = shell.start(*words, stderr=said)

    def steps(self, count: int | None = None) -> list[int]:
        """The next ones that it shows; None: all that are still to come."""
        assert self.process.stdout
        if count is None:
            return [json.loads(line)["step"] for line in self.process.stdout]
        return [json.loads(self.process.stdout.readline())["step"] for _ in range(count)]

    def end(self) -> str:
        """Once it has ended: all other output, and its exit code."""
        for _ in self.process.stdout or ():
            pass
        self.process.wait(PATIENCE_S)
        return f"{self._said.read_text()}exit code {self.process.returncode}"

    def end_well(self) -> None:
        said = self.end()
        assert "running on the twin: nothing is billed" in said
        assert "if it sleeps, the run pauses, and continues when it wakes (on `azure`, it would continue" in said
        assert "0 resources left, $0.00/h" in said
        assert said.endswith("exit code 0")


def right_end(shell: Shell, name: str, steps: int) -> dict[str, Any]:
    """Succeeded, with the very weights of an undisturbed training."""
    facts = shell.facts(name)
    assert facts["state"] == "succeeded", facts["reason"]
    assert (Path(facts["landed"]) / "model.txt").read_text() == weights_after(steps)
    assert facts["store"] == "twin"
    return facts


def weights_after(steps: int) -> str:
    weights = "0"
    for _ in range(steps):
        weights = hashlib.sha256(weights.encode()).hexdigest()
    return weights


def address(shell: Shell) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((shell.home / "twin" / "twin.json").read_text())
    return found


def test_two_first_runs_at_once_start_one_twin(shell: Shell) -> None:
    """On a computer without a server, a store or a twin."""
    job(shell, 3)
    for run in [Rehearsal(shell, name) for name in ("one", "two")]:
        run.end_well()
    assert len([line for line in shell.processes().values() if line.endswith("-m stoker.twin")]) == 1
    for name in ("one", "two"):
        right_end(shell, name, 3)


def test_evicted_by_the_cloud_it_resumes_and_nothing_is_left(shell: Shell) -> None:
    job(shell, 120)
    run = Rehearsal(shell, "story")
    shown = run.steps(5)
    shell.stoker("twin", "evict", "story", "--notice", "8s")
    shown += run.steps()
    run.end_well()
    assert sorted(set(shown)) == list(range(1, 121))
    facts = right_end(shell, "story", 120)
    assert served(facts) == ["evicted", "ended"]
    assert served(facts, "notice")[0]["drill"] is False, "the machine heard of it from its metadata service"
    assert json.loads(shell.stoker("cleanup", "--json").stdout)["left"] == []


def test_a_twin_that_is_killed_is_started_again_and_the_run_ends_right(shell: Shell) -> None:
    job(shell, 40)
    run = Rehearsal(shell, "orphan")
    run.steps(3)
    killed = address(shell)
    os.kill(killed["pid"], signal.SIGKILL)
    run.end_well()
    right_end(shell, "orphan", 40)
    assert address(shell)["pid"] != killed["pid"]
    assert address(shell)["blob"]["url"] == killed["blob"]["url"]


@pytest.mark.heavy
def test_a_failed_run_continues_from_its_checkpoint_on_another_machine_with_changes(shell: Shell) -> None:
    job(shell, 12, FAILS_AT="8")
    assert "next: stoker resume broken" in Rehearsal(shell, "broken").end()
    run = Rehearsal(shell, "resumed", "resume", "broken", "--set", "env.FAILS_AT=")
    shown = run.steps()
    run.end_well()
    assert shown == list(range(shown[0], 13)) and shown[0] > 1
    facts = right_end(shell, "broken-r2", 12)
    assert (facts["start"]["name"], facts["resumes"], facts["job"]["on"]) == ("broken", True, "azure-twin")
    changes = ("--set", "env.FAILS_AT=", "--set", "env.STEPS=15", "--name", "longer")
    run = Rehearsal(shell, "rerun", "rerun", "broken", "--from-checkpoint", *changes)
    assert run.steps() == list(range(shown[0], 16))
    run.end_well()
    facts = right_end(shell, "longer", 15)
    assert (facts["start"]["name"], facts["resumes"], facts["rerun_of"]) == ("broken", False, "broken")


@pytest.mark.slow
def test_a_run_whose_twin_was_asked_to_stop_waits_and_can_be_cancelled(shell: Shell) -> None:
    job(shell, 600)
    run = Rehearsal(shell, "stranded")
    run.steps(1)
    told = shell.stoker("twin", "down").stderr
    assert "`stoker twin up`" in told
    shell.stoker("cancel", "stranded")
    said = run.end()
    assert "the rest of its output cannot be read now" in said
    assert said.endswith("exit code 130")
    assert json.loads(shell.stoker("cleanup", "--json").stdout)["left"] == []


@pytest.mark.slow
def test_a_rerun_is_a_rehearsal_too_and_brings_the_twin_up(shell: Shell) -> None:
    job(shell, 3)
    Rehearsal(shell, "original").end_well()
    run = Rehearsal(shell, "again", "rerun", "original")
    assert run.steps() == [1, 2, 3]
    run.end_well()
    assert right_end(shell, "last", 3)["job"]["on"] == "azure-twin"


def test_the_real_cloud_and_the_store_of_other_runs_are_not_touched(shell: Shell) -> None:
    assert not (shell.home / "azure.json").exists()
    stores = {one["name"]: one for one in json.loads(shell.stoker("store", "ls", "--json").stdout)["stores"]}
    assert stores["folder"]["workspace"] and not stores["twin"]["workspace"]
    job(shell, 1)
    shell.stoker("run", "--on", "local", "--name", "here")
    assert shell.facts("here")["store"] == "folder"


def test_what_is_not_on_the_twin_cannot_be_evicted_there(shell: Shell) -> None:
    assert shell.refused("twin", "evict", "here")["cause"] == Cause.NOT_ON_TWIN
    assert shell.refused("run", "--on", "local", "--twin")["cause"] == Cause.NO_TWIN


@pytest.mark.heavy
def test_data_of_this_computer_is_put_into_the_store_once_that_is_agreed_to(shell: Shell) -> None:
    """Also files outside of the source, and what the script opens by a path of its own."""
    shell.write(
        "read.py",
        'import sys\nfor path in ("data/a.txt", "../labels/b.txt", sys.argv[1], "train.bin"): print(open(path).read())',
    )
    shell.write("train.bin", "tokens")
    shell.write(".gitignore", "*.bin")
    shell.write("data/a.txt", "hello")
    shell.write("../labels/b.txt", "labels")
    shell.write("words.csv", "words")
    data = {"set": "data", "labels": {"path": "../labels", "at": "../labels"}, "words": "words.csv"}
    data["tokens"] = {"path": "train.bin", "at": "train.bin"}
    shell.job("python3 read.py ${data.words} ${data.set}", data=data)
    plan = " ".join(shell.stoker("plan", "--on", "azure", "--twin").stdout.split())
    assert plan.count("uploaded to the store first, after you confirm") == 4
    refused = shell.stoker("run", "--on", "azure", "--twin", code=None)
    assert refused.returncode and "add `--yes`" in refused.stderr
    assert "(1 file, 5 B) is uploaded as dataset" in refused.stderr
    asked = ("run", "--on", "azure", "--twin", "--name")
    assert "login" not in refused.stderr, "the twin needs none"
    for run in (("moved", "--yes"), ("again",)):  # the user is not asked twice
        printed = shell.stoker(*asked, *run, patience_s=PATIENCE_S).stdout.split()
        assert printed == ["hello", "labels", "words", "tokens"]
    inputs = shell.facts("again")["inputs"]
    assert inputs == shell.facts("moved")["inputs"] and inputs["labels"]["label"] == "job-labels@1"


@pytest.mark.slow
def test_a_twin_that_was_told_to_forget_gets_the_code_again(shell: Shell) -> None:
    shell.stoker("twin", "down", "--forget")  # the weather, too: so this is the last test
    job(shell, 3)
    Rehearsal(shell, "fresh").end_well()
    right_end(shell, "fresh", 3)
