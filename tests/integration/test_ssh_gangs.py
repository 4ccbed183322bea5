"""One run on several hosts over SSH whose network fails: hosts parted from each other, or gone without a word."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from shell import ENDS, Shell
from test_gangs import TRAIN, outputs, reached

from stoker.testing.ssh_hosts import HostYard, TestHost, ssh_hosts

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(400)]
HERE = {"python": sys.executable, "packages": "none"}


@pytest.fixture
def yard(shell: Shell, tmp_path: Path) -> Iterator[HostYard]:
    with ssh_hosts(tmp_path / "y", 3) as made:
        shell.environ["PATH"] = f"{made.path}{os.pathsep}{shell.environ['PATH']}"
        shell.home.mkdir(mode=0o700)
        (shell.home / "ssh.hosts").write_text(made.text())
        yield made


def submit(shell: Shell, steps: int, **more: Any) -> None:
    shell.write("train.py", TRAIN.replace("time.sleep(0.03)", "time.sleep(0.1)"))
    shell.job(f"python train.py {steps}", on="ssh", environment=HERE, nodes=2, **more)
    shell.stoker("run", "--detach")


def value_after(steps: int) -> str:
    """What both ranks have in the end, undisturbed."""
    value = 1
    for step in range(steps):
        value = (value * 31 + 2 * step + 1) % 1_000_003
    return str(value)


def used(yard: HostYard) -> list[TestHost]:
    return [one for one in yard.hosts if one.nodes]


def ends_right(shell: Shell, steps: int) -> dict[str, Any]:
    shell.wait_for(lambda: shell.facts("job-1")["state"] in ENDS, "the end of job-1", 180)
    facts = shell.facts("job-1")
    assert facts["state"] == "succeeded", (facts["reason"], facts["attempts"], shell.stoker("logs", "job-1").stdout)
    found = outputs(shell, "job-1")
    assert [found["rank-0.txt"], found["rank-1.txt"]] == [value_after(steps)] * 2
    return facts


def test_hosts_that_cannot_reach_each_other_are_explained_and_continue_when_they_can(
    shell: Shell, yard: HostYard
) -> None:
    submit(shell, 150, hang="6s")
    reached(shell, "job-1", 10)
    one, other = used(yard)
    one.part_from(other)
    shell.wait_for(lambda: "no progress for" in shell.stoker("explain", "job-1").stdout, "the report of the hang", 90)
    one.rejoin(other)
    assert len(ends_right(shell, 150)["attempts"]) == 1


def steps(host: TestHost) -> int:
    """How far a rank is, as its own disk says: nothing of it may have left the host."""
    kept = [one.read_text() for one in host.home.glob(".stoker-node/*/nodes/*/node/work/checkpoints/state.txt")]
    return max((int(text.split()[0]) for text in kept if text), default=0)


def test_a_host_parted_from_server_and_store_works_on_and_everything_arrives(shell: Shell, yard: HostYard) -> None:
    """The hosts reach each other meanwhile."""
    submit(shell, 400)
    reached(shell, "job-1", 30)
    host = used(yard)[1]
    host.part_from_desk()
    before = steps(host)
    shell.wait_for(lambda: steps(host) >= before + 100, "steps without server and store", 90)
    host.rejoin_desk()
    assert len(ends_right(shell, 400)["attempts"]) == 1
    said = shell.stoker("logs", "job-1", "--rank", "1").stdout
    assert said.count("starts at 0") == 1, said


def test_a_host_that_is_gone_without_a_word_is_replaced_by_another(shell: Shell, yard: HostYard) -> None:
    submit(shell, 150)
    reached(shell, "job-1", 60)
    gone = used(yard)[1]
    gone.link("down")
    facts = ends_right(shell, 150)
    states = [attempt["state"] for attempt in facts["attempts"]]
    # The host that stays may not have released its slot yet when the next attempt asks for it.
    assert (states[0], states[-1], set(states[1:-1]) - {"lost"}) == ("lost", "ended", set())
    gone.link("up")
    shell.wait_for(lambda: not any(host.agents() for host in yard.hosts), "the end of all agents", 60)


def test_mpirun_starts_ranks_on_hosts_and_a_lost_one_is_replaced(shell: Shell, yard: HostYard) -> None:
    submit(shell, 400, launcher="mpi")
    sets = shell.home / "store" / "runs" / shell.facts("job-1")["id"] / "checkpoints"
    both = sets / "sets", sets / "node-1" / "sets"
    shell.wait_for(lambda: all(one.is_dir() and any(one.iterdir()) for one in both), "a checkpoint of each node", 120)
    used(yard)[1].link("down")
    facts = ends_right(shell, 400)
    assert [facts["attempts"][0]["state"], facts["attempts"][-1]["state"]] == ["lost", "ended"]
    assert int(shell.stoker("logs", "job-1").stdout.rsplit("starts at ", 1)[1].split()[0]) >= 50, "it resumed"
    for host in yard.hosts:
        host.link("up")
    shell.wait_for(lambda: not any(host.agents() for host in yard.hosts), "the end of all agents", 60)
