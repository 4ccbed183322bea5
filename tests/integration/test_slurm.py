"""Runs on a real Slurm cluster of this computer: time limits, preemption, and whatever administrators do to a job."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from azuretwin import TRAIN, finishes, reaches, weights_after
from shell import ENDS, Shell, made_shell

from stoker.testing.slurm_cluster import SlurmCluster, slurm_cluster

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.geteuid() != 0, reason="Slurm starts the jobs of users: it requires root"),
]
HERE = {"python": sys.executable, "packages": "none"}
LONG = 400  # steps of a training that no allocation of a minute has time for


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    with slurm_cluster(tmp_path_factory.mktemp("slurm")) as made:
        yield made


@pytest.fixture(scope="module")
def patient(cluster: SlurmCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A user whose long training runs beside the other tests: its partition allows a minute."""
    with made_shell(tmp_path_factory.mktemp("patient")) as shell:
        shell.environ |= cluster.variables
        shell.stoker("cluster", "create", "hpc", "--provider", "slurm", "--max", "1", "--setting", "time=1m")
        train(shell, LONG, on="hpc")
        yield shell


@pytest.fixture
def user(shell: Shell, cluster: SlurmCluster, patient: Shell) -> Shell:
    assert patient
    shell.environ |= cluster.variables
    return shell


def train(shell: Shell, steps: int, **more: Any) -> None:
    shell.write("train.py", TRAIN)
    env = {"STEPS": str(steps), "STEP_S": "0.2"}
    shell.job("python train.py", **{"on": "slurm", "environment": HERE, "env": env, **more})
    shell.stoker("run", "--detach")


def job_of(shell: Shell, cluster: SlurmCluster) -> str:
    """The id of the Slurm job of its newest attempt."""
    key = shell.facts("job-1")["attempts"][-1]["key"]
    rows = cluster.command("squeue", "--noheader", "--states=R", "--format=%A|%N|%j").splitlines()
    return next(row for row in rows if row.endswith(key)).partition("|")[0]


def timeline(shell: Shell) -> str:
    return shell.stoker("explain", "job-1").stdout


def test_a_run_brings_back_its_outputs_logs_and_metrics(user: Shell, cluster: SlurmCluster) -> None:
    train(user, 5)
    facts = finishes(user, "job-1", 5)
    assert facts["metrics"]["loss"]["last"] == pytest.approx(0.2)
    assert user.raw("logs", "job-1").count(b'"step"') == 5
    assert not list((user.home / "slurm" / "allocations").iterdir())


def test_a_job_that_an_administrator_cancels_is_told_as_that_and_resumes(user: Shell, cluster: SlurmCluster) -> None:
    train(user, 60)
    reaches(user, "job-1", 5)
    job = job_of(user, cluster)
    cluster.command("scancel", job)
    facts = finishes(user, "job-1", 60)
    assert len(facts["attempts"]) == 2
    assert f"{job} ended as CANCELLED" in timeline(user)


def test_a_preempted_job_is_told_as_that_and_resumes(user: Shell, cluster: SlurmCluster) -> None:
    train(user, 60)
    reaches(user, "job-1", 5)
    job = job_of(user, cluster)
    node = cluster.command("squeue", "--noheader", f"--jobs={job}", "--format=%N").strip()
    urgent = ["sbatch", "--parsable", "-p", "urgent", f"--nodelist={node}", "--cpus-per-task=2", "--output=/dev/null"]
    cluster.command(*urgent, "--wrap=sleep 3")
    facts = finishes(user, "job-1", 60)
    assert [one["state"] for one in facts["attempts"]] == ["evicted", "ended"]
    assert f"{job} ended as PREEMPTED" in timeline(user)


def test_a_run_works_on_while_the_controller_restarts_and_its_node_is_drained(
    user: Shell, cluster: SlurmCluster
) -> None:
    train(user, 40)
    reaches(user, "job-1", 5)
    job = job_of(user, cluster)
    node = cluster.command("squeue", "--noheader", f"--jobs={job}", "--format=%N").strip()
    cluster.command("scontrol", "update", f"nodename={node}", "state=drain", "reason=repair")
    cluster.stop_controller()
    cluster.start_controller(clean=False)
    facts = finishes(user, "job-1", 40)
    cluster.command("scontrol", "update", f"nodename={node}", "state=resume")
    assert len(facts["attempts"]) == 1


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_three_minutes_of_training_continue_exactly_in_four_allocations_of_a_minute(
    user: Shell, cluster: SlurmCluster
) -> None:
    user.stoker("cluster", "create", "short", "--provider", "slurm", "--max", "1", "--setting", "time=1m")
    train(user, 900, on="short")
    user.wait_for(lambda: user.facts("job-1")["state"] in ENDS, "its end", 500)
    facts = finishes(user, "job-1", 900)
    assert len(facts["attempts"]) >= 4
    assert {one["state"] for one in facts["attempts"]} == {"evicted", "ended"}


DDP = """
    import os, torch, torch.distributed as dist
    from pathlib import Path
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(5):
        batch = torch.full((2, 4), float(dist.get_rank() + step))
        optimizer.zero_grad(); model(batch).pow(2).mean().backward(); optimizer.step()
    weights = [one.tolist() for one in model.parameters()]
    Path(os.environ["STOKER_OUTPUTS"], f"rank-{dist.get_rank()}.txt").write_text(repr(weights))
"""


def test_two_nodes_train_together_in_one_allocation(user: Shell, cluster: SlurmCluster) -> None:
    user.write("train.py", DDP)
    user.job("python train.py", on="slurm", environment=HERE, nodes=2)
    user.stoker("run", "--detach")
    facts = user.ended("job-1")
    assert facts["state"] == "succeeded", facts["reason"]
    landed = Path(user.wait_for(lambda: user.facts("job-1")["landed"], "the outputs"))
    assert (landed / "rank-0.txt").read_text() == (landed / "rank-1.txt").read_text()
    rows = cluster.command("squeue", "--noheader", "--states=all", "--format=%D|%j").splitlines()
    assert [row.partition("|")[0] for row in rows if row.endswith(facts["attempts"][0]["key"])] == ["2"]


def test_a_run_that_is_cancelled_in_the_queue_leaves_no_job(user: Shell, cluster: SlurmCluster) -> None:
    other = cluster.command("sbatch", "--parsable", "--output=/dev/null", "--wrap=sleep 100").strip()
    train(user, 5, cpus=2, nodes=3)
    user.wait_for(lambda: "waits in the queue of slurm" in user.facts("job-1")["reason"], "the reason")
    user.stoker("cancel", "job-1")
    assert user.ended("job-1")["state"] == "cancelled"
    user.wait_for(lambda: "job-1" not in cluster.command("squeue", "--noheader", "--format=%j"), "the end of the job")
    cluster.command("scancel", other)


def test_a_training_that_is_longer_than_the_time_limit_continues_exactly(patient: Shell, cluster: SlurmCluster) -> None:
    assert "3 allocations" in patient.stoker("plan", "--hours", "0.05").stdout
    patient.wait_for(lambda: patient.facts("job-1")["state"] == "succeeded", "its end", 240)
    facts = patient.facts("job-1")
    assert len(facts["attempts"]) >= 2
    assert {one["state"] for one in facts["attempts"]} == {"evicted", "ended"}
    landed = Path(patient.wait_for(lambda: patient.facts("job-1")["landed"], "the outputs"))
    assert (landed / "model.txt").read_text() == weights_after(LONG)
