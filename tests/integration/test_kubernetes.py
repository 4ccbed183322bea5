"""Runs on a small Kubernetes of our own, whose pods are real processes: evictions, an API server that is away, gangs,
and jobs that bring an image."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from azuretwin import TRAIN, finishes, reaches
from shell import Shell

from kubeschema import check
from stoker.testing.kubernetes import IMAGE, FakeKubernetes, KubeFault, fake_kubernetes, kubeconfig

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.geteuid() != 0, reason="pods have namespaces of their own: it requires root"),
]
STEPS = 60
TOGETHER = """
    import os, socket
    from pathlib import Path

    rank, place = int(os.environ["RANK"]), (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    if rank == 0:
        with socket.create_server(("", place[1]), reuse_port=True) as server:
            peer = server.accept()[0]
            total = 1 + int(peer.recv(100))
            peer.sendall(str(total).encode())
    else:
        with socket.create_connection(place, timeout=30) as peer:
            peer.sendall(b"41")
            total = int(peer.recv(100))
    Path(os.environ["STOKER_OUTPUTS"], f"rank-{rank}.txt").write_text(f"{total} of {os.environ['WORLD_SIZE']}")
"""


@pytest.fixture
def kube(shell: Shell, tmp_path: Path) -> Iterator[FakeKubernetes]:
    """A user whose cluster mounts the folder of Stoker's store as a claim."""
    with fake_kubernetes(tmp_path / "kube", check) as made:
        (tmp_path / "config").write_text(kubeconfig(made.server.url, token="jane"))
        shell.environ["KUBECONFIG"] = str(tmp_path / "config")
        made.claims["shared"] = shell.home
        shell.home.mkdir(exist_ok=True)
        settings = ("--setting", f"volumes=shared:{shell.home}", "--setting", "grace=6")
        shell.stoker("cluster", "create", "pods", "--provider", "kubernetes", "--max", "4", *settings)
        yield made


def train(shell: Shell, steps: int = STEPS, **more: Any) -> None:
    shell.write("train.py", TRAIN)
    env = {"STEPS": str(steps), "STEP_S": "0.2"}
    shell.job("python3 train.py", **{"on": "pods", "environment": {"packages": "none"}, "env": env, **more})
    shell.stoker("run", "--detach")


def is_empty(shell: Shell, kube: FakeKubernetes) -> None:
    shell.wait_for(lambda: not kube.left(), f"nothing to be left, but there is {kube.left()}")


def test_an_evicted_run_saves_on_its_notice_and_resumes_exactly(shell: Shell, kube: FakeKubernetes) -> None:
    train(shell)
    reaches(shell, "job-1", 10)
    (pod,) = kube.running()
    kube.evict(pod)
    facts = finishes(shell, "job-1", STEPS)
    assert [one["state"] for one in facts["attempts"]] == ["evicted", "ended"]
    assert "EvictionByEvictionAPI" in shell.stoker("explain", "job-1").stdout
    assert facts["metrics"]["loss"]["last"] == pytest.approx(1 / STEPS)
    log = shell.raw("logs", "job-1").decode()
    steps = [json.loads(line)["step"] for line in log.splitlines() if line.startswith("{")]
    assert sorted(set(steps)) == list(range(1, STEPS + 1)), "no line is lost"
    is_empty(shell, kube)


def test_a_run_works_on_while_the_api_server_is_away(shell: Shell, kube: FakeKubernetes) -> None:
    train(shell)
    reaches(shell, "job-1", 5)
    kube.restart(away_s=4.0)
    kube.server.faults = [KubeFault("", 429, times=5), KubeFault("", 500, times=5)]
    facts = finishes(shell, "job-1", STEPS)
    assert len(facts["attempts"]) == 1
    is_empty(shell, kube)


def test_a_killed_pod_costs_a_checkpoint_interval_and_no_result(shell: Shell, kube: FakeKubernetes) -> None:
    train(shell)
    reaches(shell, "job-1", 10)
    kube.pods.kill(kube.running()[0], out_of_memory=True)
    facts = finishes(shell, "job-1", STEPS)
    assert len(facts["attempts"]) == 2
    assert "OOMKilled" in facts["attempts"][0]["message"]
    is_empty(shell, kube)


def test_two_nodes_meet_in_one_job(shell: Shell, kube: FakeKubernetes) -> None:
    shell.write("together.py", TOGETHER)
    shell.job("python3 together.py", on="pods", nodes=2, environment={"packages": "none"})
    shell.stoker("run", "--detach")
    shell.wait_for(lambda: kube.objects.select("jobs"), "its job")
    assert [one["spec"]["completions"] for one in kube.objects.select("jobs")] == [2]
    facts = shell.ended("job-1")
    assert facts["state"] == "succeeded", facts["reason"]
    landed = Path(shell.wait_for(lambda: shell.facts("job-1")["landed"], "the outputs"))
    assert {(landed / f"rank-{rank}.txt").read_text() for rank in (0, 1)} == {"42 of 2"}
    is_empty(shell, kube)


def test_a_script_runs_with_what_its_image_has(shell: Shell, kube: FakeKubernetes) -> None:
    kube.images["example.org/trainer:7"] = kube.images[IMAGE]
    train(shell, 5, environment={"image": "example.org/trainer:7"})
    pod = shell.wait_for(kube.running, "its pod")[0]
    assert {one["image"] for one in pod["spec"]["containers"]} == {"example.org/trainer:7"}
    finishes(shell, "job-1", 5)
    is_empty(shell, kube)


def test_a_cancelled_run_leaves_nothing(shell: Shell, kube: FakeKubernetes) -> None:
    train(shell)
    reaches(shell, "job-1", 3)
    shell.stoker("cancel", "job-1")
    assert shell.ended("job-1")["state"] == "cancelled"
    is_empty(shell, kube)
    assert json.loads(shell.stoker("cleanup", "--json").stdout)
