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
from test_gangs import gang, outputs, reached
from test_on_azure_blob import use

from kubeschema import check
from services import KEY, Azurite
from stoker.testing.kubernetes import IMAGE, FakeKubernetes, KubeFault, fake_kubernetes, kubeconfig
from stoker.testing.kubernetes.controllers import INDEX

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.geteuid() != 0, reason="pods have namespaces of their own: it requires root"),
]
STEPS = 60


# Looks for what its node writes to the store with, wherever a script of the same user can.
PEEK = """
    import os
    from pathlib import Path

    places = [*Path("/stoker").glob("*"), *Path("/dev/shm").iterdir(), *Path("/").glob("stoker-*")]
    files = [one for one in places if one.is_file() and one.suffix != ".pyz"]
    shown = [*Path("/proc").glob("[0-9]*/environ"), *Path("/proc").glob("[0-9]*/cmdline")]
    texts = [one.read_bytes() for one in [*files, *shown]]
    assert len(texts) > 4
    assert not [one for one in texts if b"STOKER_ACCESS" in one or b"STOKER_SEAL" in one or b"sig=" in one]
    assert not any(name.startswith("KUBERNETES_") for name in os.environ)
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


def test_pods_need_no_claim_with_a_blob_store_and_the_script_finds_no_token(
    shell: Shell, kube: FakeKubernetes, azurite: Azurite
) -> None:
    use(shell, azurite.new_container(), KEY)
    shell.stoker("cluster", "create", "bare", "--provider", "kubernetes", "--max", "1", "--setting", "grace=6")
    shell.write("peek.py", PEEK)
    train(shell, on="bare")
    reaches(shell, "job-1", 10)
    kube.evict(kube.running()[0])
    facts = finishes(shell, "job-1", STEPS)
    assert [one["state"] for one in facts["attempts"]] == ["evicted", "ended"]
    shell.job("python3 peek.py", on="bare", environment={"packages": "none"})
    shell.stoker("run", "--detach")
    facts = shell.ended("job-2")
    assert facts["state"] == "succeeded", shell.stoker("logs", "job-2").stdout
    is_empty(shell, kube)


def test_a_run_works_on_while_the_api_server_and_stokers_own_are_away(shell: Shell, kube: FakeKubernetes) -> None:
    train(shell)
    reaches(shell, "job-1", 5)
    shell.kill_server()
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


def test_a_gang_is_one_job_and_resumes_exactly_after_an_eviction_of_one_node(
    shell: Shell, kube: FakeKubernetes
) -> None:
    settings = {"on": "pods", "environment": {"packages": "none"}, "nodes": 2}
    gang(shell, 400, **settings, name="hit")
    shell.stoker("run", "--detach")
    reached(shell, "hit-1", 110)
    (job,) = kube.objects.select("jobs")
    assert (job["spec"]["completions"], len(kube.objects.select("services"))) == (2, 1)
    kube.evict(next(one for one in kube.running() if one["metadata"]["annotations"][INDEX] == "1"))
    facts = shell.ended("hit-1")
    assert facts["state"] == "succeeded", (facts["reason"], facts["attempts"])
    assert [one["state"] for one in facts["attempts"]] == ["evicted", "ended"]
    gang(shell, 400, **{**settings, "on": "local"}, name="calm")
    shell.stoker("run")
    assert outputs(shell, "hit-1") == outputs(shell, "calm-1")
    is_empty(shell, kube)


def test_a_run_waits_for_kueue_and_resumes_where_kueue_preempts_it(shell: Shell, kube: FakeKubernetes) -> None:
    kube.server.kueue = True
    kube.objects.create("localqueues", "team", {"metadata": {"name": "gpus"}})
    shell.stoker(
        *("cluster", "create", "queued", "--provider", "kubernetes", "--max", "1", "--setting", "grace=6"),
        *("--setting", f"volumes=shared:{shell.home}", "--setting", "queue=gpus"),
    )
    train(shell, on="queued")
    (first,) = shell.wait_for(lambda: kube.objects.select("jobs"), "its job")
    kube.queue(first, "QuotaReserved", "Pending", "insufficient-17")
    shell.wait_for(lambda: "insufficient-17" in shell.facts("job-1")["reason"], "the reason")
    kube.admit(first["metadata"]["name"])
    reaches(shell, "job-1", 10)
    kube.queue(first, "Evicted", "Preempted", "priority-17")
    kube.admit(first["metadata"]["name"], suspend=True)

    def second() -> list[str]:
        names = [one["metadata"]["name"] for one in kube.objects.select("jobs")]
        return [one for one in names if one != first["metadata"]["name"]]

    kube.admit(shell.wait_for(second, "another job")[0])
    facts = finishes(shell, "job-1", STEPS)
    assert [one["state"] for one in facts["attempts"]] == ["evicted", "ended"]
    kube.objects.remove("localqueues", "team", "gpus")
    shell.wait_for(lambda: not kube.objects.select("jobs"), "the end of its job")


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
    assert json.loads(shell.stoker("cleanup", "--json").stdout)["left"] == []
