"""Clusters on this computer: a bound on the nodes used at once, paused, resized and removed."""

from __future__ import annotations

import json
from textwrap import dedent
from typing import Any

import pytest
from shell import Shell
from test_gangs import TRAIN, gang, outputs, reached

from stoker.model.cause import Cause

STEPS = 1500  # three quarters of a minute: a gang that is told to make room does not just end
SCRIPT = """import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
time.sleep(float(sys.argv[1]))
print('done')
"""


def waits(shell: Shell, run: str, cause: Cause) -> None:
    shell.wait_for(lambda: shell.facts(run)["cause"] == cause, f"`{cause}` as the cause of {run}")


def cluster(shell: Shell, name: str = "dev") -> dict[str, Any]:
    return dict(json.loads(shell.stoker("cluster", "show", name, "--json").stdout)["cluster"])


@pytest.mark.timeout(400)
def test_a_cluster_bounds_its_nodes_and_can_be_paused_resized_and_removed(shell: Shell) -> None:
    shell.stoker("cluster", "create", "dev", "--provider", "local", "--max", "1")
    shell.write("train.py", SCRIPT)
    shell.job("python train.py 600", on="dev")
    shell.stoker("run", "--detach", "--name", "first")
    shell.wait_for(lambda: shell.facts("first")["state"] == "running", "first to run")
    shell.job("python train.py 0", on="dev")
    shell.stoker("run", "--detach", "--name", "second")
    waits(shell, "second", Cause.NO_ROOM)
    state = cluster(shell)
    assert (state["busy_nodes"], state["running"], state["waiting"]) == (1, ["first"], ["second"])
    refused = shell.refused("cluster", "rm", "dev", "--yes")
    assert refused["cause"] == Cause.CLUSTER_IN_USE and "`first`" in refused["message"]

    shell.stoker("cluster", "resize", "dev", "--max", "2")
    assert shell.ended("second")["state"] == "succeeded"
    shell.stoker("cluster", "pause", "dev")
    shell.stoker("run", "--detach", "--name", "third")
    waits(shell, "third", Cause.CLUSTER_PAUSED)
    shell.wait_for(lambda: cluster(shell)["busy_nodes"] == 0, "no node to be left")
    waits(shell, "first", Cause.CLUSTER_PAUSED)
    shell.stoker("cluster", "resume", "dev")
    assert shell.ended("third")["state"] == "succeeded"
    again = shell.stoker("rerun", "third", "--detach", "--json").stdout
    assert json.loads(again)["run"]["pool"]["name"] == "dev"
    shell.wait_for(lambda: shell.facts("first")["state"] == "running", "first to run again")
    assert [one["state"] for one in shell.facts("first")["attempts"]] == ["moved", "running"]
    shell.stoker("cancel", "first")
    shell.ended("first")
    shell.wait_for(lambda: not cluster(shell)["running"] and not cluster(shell)["waiting"], "the rerun's end")
    shell.stoker("cluster", "rm", "dev", "--yes")
    assert "`dev`" in shell.stoker("run", "--detach", code=2).stderr


def test_what_a_cluster_cannot_do_is_refused_at_once(shell: Shell) -> None:
    shell.stoker("cluster", "create", "dev", "--provider", "local", "--max", "2")
    shell.job("true", on="dev", nodes=4)
    [problem] = shell.refused("run", "--detach")["problems"]
    assert (problem["field"], problem["found"]) == ("nodes", "`4`") and "resize dev --max 4" in problem["expected"]
    assert "on dev" in shell.stoker("plan", "--set", "nodes=2").stdout
    shell.stoker("cluster", "pause", "dev")
    assert "is paused" in shell.stoker("plan", "--set", "nodes=2").stdout

    def cause(*words: str) -> str:
        return str(shell.refused("cluster", *words)["cause"])

    assert cause("create", "dev", "--provider", "local", "--max", "2") == Cause.NAME_IN_USE
    assert cause("create", "a", "--provider", "locl", "--max", "2") == Cause.NO_SUCH_PROVIDER
    assert cause("create", "a", "--provider", "local", "--max", "2", "--min", "3") == Cause.CLUSTER_LIMITS
    assert cause("create", "a", "--provider", "local", "--max", "2", "--min", "1") == Cause.NO_IDLE_NODES
    assert cause("resize", "dev", "--min", "1") == Cause.NO_IDLE_NODES
    assert cause("create", "local", "--provider", "local", "--max", "2") == Cause.NAME_IN_USE
    assert cause("create", "a", "--provider", "local", "--max", "2", "--spot") == Cause.NO_SPOT
    unknown = shell.refused("cluster", "show", "dec")
    assert unknown["cause"] == Cause.NO_SUCH_CLUSTER and "`dev`" in unknown["hint"]
    assert "dev" in shell.stoker("cluster", "ls").stdout


@pytest.mark.heavy
@pytest.mark.timeout(600)
def test_a_gang_of_high_priority_pauses_one_of_low_priority_which_ends_with_the_same_result(shell: Shell) -> None:
    shell.stoker("cluster", "create", "dev", "--provider", "local", "--max", "3")
    gang(shell, STEPS, on="dev", nodes=2, name="low", priority="low")
    shell.write(
        "train.py", "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n" + dedent(TRAIN)
    )
    shell.stoker("run", "--detach")
    reached(shell, "low-1", 110)
    shell.job("python train.py 60", on="dev", nodes=3, name="high", priority="high")
    shell.stoker("run", "--detach")
    shell.wait_for(lambda: shell.facts("high-1")["state"] == "running", "high-1 to run", 120)
    low = shell.facts("low-1")
    assert low["state"] == "queued" and low["attempts"][-1]["state"] == "moved", low
    assert low["attempts"][-1]["notice"], "it was told, and had time to save"
    assert shell.ended("high-1")["state"] == "succeeded"
    ended = shell.ended("low-1")
    assert ended["state"] == "succeeded", (ended["reason"], ended["attempts"])
    assert [one["state"] for one in ended["attempts"]] == ["moved", "ended"]
    starts = [
        int(one.rsplit(" ", 1)[1]) for one in shell.stoker("logs", "low-1").stdout.splitlines() if "starts at" in one
    ]
    assert min(starts[-2:]) >= 100, f"both ranks resumed: {starts}"
    value = 1
    for step in range(STEPS):
        value = (value * 31 + 2 * step + 1) % 1_000_003
    assert [outputs(shell, "low-1")[f"rank-{rank}.txt"] for rank in range(2)] == [str(value)] * 2, "as if undisturbed"
    assert "high-1" in shell.stoker("explain", "low-1").stdout
