"""The space of runs is shown and freed, down to the last file, and never of a run that needs it."""

from __future__ import annotations

import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from shell import Shell

from stoker.client.api.client import Client
from stoker.client.settings import from_environment
from stoker.model.cause import Cause
from stoker.model.job.job import Job

SCRIPT = """\
import json, os, sys, time
os.makedirs("outputs", exist_ok=True)
os.makedirs("checkpoints", exist_ok=True)
open("outputs/model.bin", "wb").write(os.urandom(50_000))
open("checkpoints/last.bin", "wb").write(os.urandom(70_000))
print(json.dumps({"loss": float(os.environ.get("LOSS", "1"))}), flush=True)
time.sleep(float(os.environ.get("SLEEP", "0")))
"""


@pytest.fixture
def desk(shell: Shell) -> Shell:
    shell.write("train.py", SCRIPT)
    shell.write("requirements.txt", "")
    shell.job("python train.py", environment="requirements.txt", retention={"best": "-loss"})
    return shell


def files(folder: Path) -> list[str]:
    """Also while they are being removed, which `rglob` does not bear."""
    found = (Path(root, name) for root, _, names in os.walk(folder) for name in names)
    return sorted(str(path.relative_to(folder)) for path in found)


def test_nothing_is_left_in_the_store_after_the_last_run_is_removed(desk: Shell) -> None:
    desk.stoker("run")
    desk.job("python train.py")
    desk.stoker("run")
    desk.stoker("rm", "job-1", "--yes")
    store, environments = desk.home / "store", desk.home / "environments"
    assert any(name.startswith("blobs/") for name in files(store)), "the second run has the same script"
    assert files(environments) == [], "only the first run needed it"
    assert desk.stoker("rerun", "job-2", "-d").returncode == 0, "its code is whole"
    assert desk.ended("job-3")["state"] == "succeeded"
    desk.stoker("rm", "job-2", "job-3", "--yes")
    assert files(store) == []
    assert files(desk.home / "nodes") == []


def test_sizes_are_those_of_the_files(desk: Shell) -> None:
    desk.stoker("run")
    told = json.loads(desk.stoker("ps", "--sizes", "--json").stdout)
    sizes, run_id = told["sizes"]["runs"]["job-1"], told["runs"][0]["id"]
    run = desk.home / "store" / "runs" / run_id
    stored = sum(path.stat().st_size for path in run.rglob("*") if path.is_file())
    assert sizes["checkpoints"] + sizes["outputs"] + sizes["logs"] == stored
    assert 50_000 <= sizes["outputs"] < 60_000
    assert 70_000 <= sizes["checkpoints"] < 80_000
    assert sizes["code"] == sum((desk.folder / name).stat().st_size for name in ("train.py", "stoker.yaml"))
    assert sizes["here"] >= 120_000
    assert told["sizes"]["home"]["environments"] > 0
    shown = desk.stoker("ps", "--sizes").stdout.splitlines()
    assert shown[0].split()[:4] == ["RUN", "STATE", "AGE", "CODE"]
    assert "50 kB" in shown[1]


@pytest.mark.heavy
def test_pruning_lists_first_and_keeps_the_newest_the_best_and_what_is_under_way(desk: Shell) -> None:
    for loss in ("3", "1", "2", "5"):
        desk.stoker("run", "--set", f"env.LOSS={loss}")
    desk.stoker("run", "-d", "--set", "env.SLEEP=60", "--set", "name=other")
    rule = ("prune", "--older-than", "0s", "--keep-best")
    told = json.loads(desk.stoker(*rule, "--json").stdout)
    assert told["would_remove"] == ["job-1", "job-3"]
    assert {one["name"] for one in told["spared"]} == {"job-2", "job-4"}, "the best and the newest"
    assert "add `--yes`" in desk.stoker(*rule, code=2).stderr
    assert len(json.loads(desk.stoker("ps", "-a", "--json").stdout)["runs"]) == 5
    desk.stoker(*rule, "--yes")
    left = {run["name"] for run in json.loads(desk.stoker("ps", "-a", "--json").stdout)["runs"]}
    assert left == {"job-2", "job-4", "other-1"}
    assert desk.facts("other-1")["state"] in ("starting", "running")
    assert "deleted 0 runs" in desk.stoker(*rule, "--yes").stderr
    assert len(list((desk.home / "store" / "runs").iterdir())) == 3


def test_pruning_also_removes_packages_that_no_run_has_taken_along_since(desk: Shell) -> None:
    kept = desk.home / "software" / "abc" / "own-1.0-py3-none-any.whl"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(os.urandom(20_000))
    for one in (kept, kept.parent):
        os.utime(one, (time.time() - 10 * 86_400,) * 2)
    told = json.loads(desk.stoker("prune", "--older-than", "9d", "--json").stdout)
    assert told["software_bytes"] >= 20_000 and kept.exists()
    desk.stoker("prune", "--older-than", "9d", "--experiment", "job", "--yes")
    desk.stoker("prune", "--older-than", "11d", "--yes")
    assert kept.exists()
    desk.stoker("prune", "--older-than", "9d", "--yes")
    assert not kept.exists()


@pytest.mark.heavy
def test_the_server_prunes_by_itself_where_it_is_told_to(desk: Shell) -> None:
    for _ in range(2):
        desk.stoker("run")
    old = desk.home / "software" / "list.txt"
    old.parent.mkdir(exist_ok=True)
    desk.stoker("prune", "--older-than", "1d", "--daily", "--yes")
    old.touch()
    os.utime(old, (time.time() - 2 * 86_400,) * 2)
    assert "more than 1d 0h ago" in desk.stoker("prune").stderr
    desk.stoker("server", "stop")
    assert len(json.loads(desk.stoker("ps", "--json").stdout)["runs"]) == 2, "they are too young"
    desk.wait_for(lambda: not old.exists(), "the server removes what nobody has used")
    desk.stoker("prune", "--older-than", "0s", "--daily", "--experiment", "another", "--yes")
    rule = desk.home / "prune.json"
    rule.write_text(rule.read_text().replace("another", "job"))
    desk.stoker("server", "stop")
    desk.wait_for(lambda: len(json.loads(desk.stoker("ps", "--json").stdout)["runs"]) == 1, "the rule is followed")
    desk.stoker("prune", "--no-daily")
    assert not rule.exists()
    assert desk.refused("prune", "--keep-best")["cause"] == Cause.OPTIONS_CONFLICT


def test_a_server_that_is_killed_while_it_removes_goes_on_when_it_is_back(desk: Shell) -> None:
    desk.stoker("run")
    desk.stoker("ps")
    pid = desk.server_pid()
    store = desk.home / "store"
    removing = desk.start("rm", "job-1", "--yes")
    before = len(files(store))
    while len(files(store)) == before and removing.poll() is None:
        time.sleep(0.0005)
    os.kill(pid, signal.SIGKILL)
    removing.communicate(timeout=60)
    desk.wait_for(lambda: desk.stoker("ps", "-a").stdout == "" and files(store) == [], "nothing is left")


@pytest.mark.heavy
def test_runs_that_come_and_go_at_once_with_the_same_code_all_succeed(desk: Shell) -> None:
    """Each submission finds the code of the run before it, which is removed at that very moment."""
    client = Client.connect(from_environment(desk.environ))
    job = Job(name="race", run="python -c 'open(\"train.py\").read()'")

    def live(_: int) -> list[str]:
        ends = []
        for _ in range(4):
            run = client.submit(job, desk.folder)
            run.wait(60)
            ends.append(f"{run.state} {run.facts.reason}")
            client.remove(run.name)
        return ends

    with ThreadPoolExecutor(4) as threads:
        ends = [one for some in threads.map(live, range(4)) for one in some]
    assert set(ends) == {"succeeded "}
    desk.wait_for(lambda: files(desk.home / "store") == [], "nothing is left")


@pytest.mark.heavy
def test_uninstalling_refuses_while_something_runs_and_then_leaves_nothing_of_ours(desk: Shell) -> None:
    desk.stoker("run", "-d", "--set", "env.SLEEP=60")
    refused = desk.refused("uninstall", "--yes")
    assert refused["cause"] == Cause.RUN_ACTIVE and "`stoker cancel job-1`" in refused["hint"]
    desk.stoker("cancel", "job-1")
    desk.ended("job-1")
    (desk.home / "mine.txt").write_text("not Stoker's")
    assert "add `--yes`" in desk.stoker("uninstall", code=2).stderr
    told = json.loads(desk.stoker("uninstall", "--json").stdout)
    assert told["stays"] == [str(desk.home / "mine.txt")]
    [process] = told["processes"]
    assert f"pid {desk.server_pid()})" in process
    desk.stoker("uninstall", "--yes")
    assert [path.name for path in desk.home.iterdir()] == ["mine.txt"]
    desk.wait_for(lambda: desk.processes() == {}, "no process is left")
    desk.stoker("uninstall", "--yes")
    (desk.home / "mine.txt").unlink()
    desk.stoker("run")
    desk.stoker("uninstall", "--yes")
    assert not desk.home.exists()
    assert (desk.folder / "outputs" / "job-1" / "model.bin").exists()


def test_uninstalling_is_refused_as_long_as_a_node_is_kept(desk: Shell) -> None:
    desk.job("exit 1", keep_failed="10m")
    desk.stoker("run", code=1)
    refused = desk.refused("uninstall", "--yes")
    assert refused["cause"] == Cause.MACHINES_LEFT and "`stoker release job-1`" in refused["hint"]
    assert desk.facts("job-1")["state"] == "failed"
    desk.stoker("release", "job-1")
    desk.stoker("uninstall", "--yes")
    assert not desk.home.exists()
