"""Runs on a Slurm cluster whose login node only ssh reaches: nothing of Slurm is used on the user's computer."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from azuretwin import TRAIN, finishes, reaches
from shell import Shell

from stoker.testing.slurm_cluster import SlurmCluster, slurm_cluster
from stoker.testing.ssh_hosts import TestHost, ssh_hosts

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.timeout(400),
    pytest.mark.skipif(os.geteuid() != 0, reason="Slurm starts the jobs of users: it requires root"),
]
HERE = {"python": sys.executable, "packages": "none"}


@pytest.fixture
def login(shell: Shell, tmp_path: Path) -> Iterator[tuple[TestHost, SlurmCluster]]:
    """A user without Slurm's commands: on their path there are only a few programs."""
    with ssh_hosts(tmp_path / "y", 1) as yard:
        host = yard.hosts[0]
        with slurm_cluster(tmp_path / "slurm", ("n1", "n2"), host.desk) as cluster:
            host.variables = " ".join(f"{name}={value}" for name, value in cluster.variables.items())
            host.reconfigure()
            shell.environ["PATH"] = f"{yard.path}:{_without_slurm(tmp_path / 'few')}"
            shell.environ["STOKER_SLURM_LOGIN"] = host.name
            yield host, cluster


def _without_slurm(folder: Path) -> Path:
    folder.mkdir()
    for place in ("/usr/bin", "/bin"):
        for program in Path(place).iterdir():
            hidden = ("sbatch", "squeue", "scancel", "sinfo", "scontrol", "sacct", "srun", "ssh")
            if program.name not in hidden and not (folder / program.name).is_symlink():
                (folder / program.name).symlink_to(program)
    return folder


def train(shell: Shell, steps: int) -> None:
    shell.write("train.py", TRAIN)
    env = {"STEPS": str(steps), "STEP_S": "0.2", "REST_AT": "10", "REST_S": "60"}
    shell.job("python train.py", on="slurm", environment=HERE, env=env)
    shell.stoker("run", "--detach")


def test_a_run_through_a_login_node_resumes_after_its_job_was_cancelled_and_leaves_nothing(
    shell: Shell, login: tuple[TestHost, SlurmCluster]
) -> None:
    host, cluster = login
    train(shell, 20)
    reaches(shell, "job-1", 10)
    (job,) = cluster.jobs()
    assert list(host.home.glob(f".stoker-slurm/*/allocations/{shell.facts('job-1')['attempts'][0]['key']}"))
    cluster.command("scancel", job)
    facts = finishes(shell, "job-1", 20)
    assert len(facts["attempts"]) == 2
    assert f"Slurm job {job} ended as CANCELLED" in shell.stoker("explain", "job-1").stdout
    shell.wait_for(lambda: not list(host.home.glob(".stoker-slurm/*/allocations/*")), "nothing to be left")
    assert cluster.jobs() == []


def test_a_run_works_on_while_the_login_node_is_away(shell: Shell, login: tuple[TestHost, SlurmCluster]) -> None:
    host, cluster = login
    train(shell, 20)
    reaches(shell, "job-1", 10)
    host.link("down")
    shell.wait_for(lambda: "lab1" in shell.stoker("show", "job-1").stdout, "the reason", 90)
    host.link("up")
    assert len(finishes(shell, "job-1", 20)["attempts"]) == 1
    assert cluster.jobs() == []
