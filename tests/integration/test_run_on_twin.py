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
from shell import Shell

pytestmark = [pytest.mark.xdist_group("twin"), pytest.mark.timeout(300)]

# As unprepared for evictions as scripts are: it only writes its state where it always did.
TRAIN = """
    import hashlib, json, os, time
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
    Path(os.environ["STOKER_OUTPUTS"], "model.txt").write_text(state["weights"])
"""


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    root = tmp_path_factory.mktemp("rehearsal")
    (root / "project").mkdir()
    keep = {name: os.environ[name] for name in os.environ if not name.startswith(("STOKER_", "PYTHON"))}
    shell = Shell(root / "home", root / "project", {**keep, "STOKER_HOME": str(root / "home")})
    shell.write("train.py", TRAIN)
    yield shell
    shell.stoker("server", "stop", code=None)
    shell.stoker("twin", "down", "--forget", code=None)
    shell.wait_for(lambda: not shell.processes(), "everything to be gone")


def job(shell: Shell, steps: int) -> None:
    shell.job("python3 train.py", spot=True, env={"STEPS": str(steps)})


def reaches(shell: Shell, run: str, step: int) -> None:
    def there() -> bool:
        metrics = shell.facts(run)["metrics"]
        return bool(metrics) and metrics["loss"]["step"] >= step

    shell.wait_for(there, f"step {step} of {run}", 120)


def ended(shell: Shell, run: str, steps: int) -> dict[str, Any]:
    """Succeeded, with the very weights of an undisturbed training."""
    shell.wait_for(lambda: shell.facts(run)["state"] not in ("queued", "starting", "running"), f"{run}'s end", 150)
    facts = shell.facts(run)
    assert facts["state"] == "succeeded", facts["reason"]
    landed = Path(shell.wait_for(lambda: shell.facts(run)["landed"], "the outputs"))
    assert (landed / "model.txt").read_text() == weights_after(steps)
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
    both = [shell.start("run", "--on", "azure", "--twin", "-d", "--name", name) for name in ("one", "two")]
    for process in both:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, f"{out}\n{err}"
        assert "on the twin: nothing of this costs money" in err
    twins = [line for line in shell.processes().values() if line.endswith("-m stoker.twin")]
    assert len(twins) == 1
    for name in ("one", "two"):
        assert ended(shell, name, 3)["store"] == "twin"


def test_evicted_by_the_cloud_it_goes_on_and_nothing_is_left(shell: Shell) -> None:
    steps = 60
    job(shell, steps)
    with shell.start("run", "--on", "azure", "--twin", "--name", "story") as run:
        reaches(shell, "story", 5)
        shell.stoker("twin", "evict", "story", "--notice", "8s")
        out, err = run.communicate(timeout=150)
    assert run.returncode == 0, err
    shown = [json.loads(line)["step"] for line in out.splitlines() if line.startswith("{")]
    assert sorted(set(shown)) == list(range(1, steps + 1))
    assert "0 resources left, $0.00/h" in err
    facts = ended(shell, "story", steps)
    assert [one["state"] for one in facts["attempts"]] == ["evicted", "ended"]
    assert facts["attempts"][0]["notice"]["drill"] is False, "the machine heard of it from its metadata service"
    assert json.loads(shell.stoker("sweep", "--json").stdout)["left"] == []


def test_the_real_cloud_and_the_store_of_other_runs_are_not_touched(shell: Shell) -> None:
    assert not (shell.home / "azure.json").exists()
    stores = {one["name"]: one for one in json.loads(shell.stoker("store", "ls", "--json").stdout)["stores"]}
    assert stores["folder"]["workspace"] and not stores["twin"]["workspace"]
    job(shell, 1)
    shell.stoker("run", "--on", "local", "--name", "here")
    assert shell.facts("here")["store"] == "folder"


def test_a_rerun_is_a_rehearsal_too_and_brings_the_twin_up(shell: Shell) -> None:
    shell.stoker("twin", "down")
    name = shell.stoker("rerun", "one", "-d").stdout.strip()
    facts = ended(shell, name, 3)
    assert (facts["job"]["on"], facts["store"]) == ("azure-twin", "twin")
    assert shell.stoker("logs", name).stdout.count('"step"') == 3


def test_a_twin_that_is_killed_is_started_again_and_the_run_ends_right(shell: Shell) -> None:
    steps = 40
    job(shell, steps)
    shell.stoker("run", "--on", "azure", "--twin", "-d", "--name", "orphan")
    reaches(shell, "orphan", 3)
    killed = address(shell)
    os.kill(killed["pid"], signal.SIGKILL)
    ended(shell, "orphan", steps)
    assert address(shell)["pid"] != killed["pid"]
    assert address(shell)["blob"]["url"] == killed["blob"]["url"]


def test_a_run_whose_twin_was_told_to_end_says_so_and_can_be_cancelled(shell: Shell) -> None:
    job(shell, 600)
    shell.stoker("run", "--on", "azure", "--twin", "-d", "--name", "stranded")
    reaches(shell, "stranded", 1)
    told = shell.stoker("twin", "down").stderr
    assert "stranded" in told and "stoker twin up" in told
    shell.wait_for(lambda: shell.facts("stranded")["reason"], "a reason")
    shell.stoker("cancel", "stranded")
    shell.wait_for(lambda: shell.facts("stranded")["state"] == "cancelled", "its end")
    assert json.loads(shell.stoker("sweep", "--json").stdout)["left"] == []


def test_what_is_not_on_the_twin_cannot_be_evicted_there(shell: Shell) -> None:
    refused = shell.stoker("twin", "evict", "here", code=2)
    assert "`here` is on `local`, not on the twin" in refused.stderr
    refused = shell.stoker("run", "--on", "local", "--twin", code=2)
    assert "`local` has no twin" in refused.stderr
