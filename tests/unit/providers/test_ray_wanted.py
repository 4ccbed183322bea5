"""What a Ray cluster is asked for, and what is refused because it has never got it."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

import pytest

from stoker.errors import JobInvalid
from stoker.model.node import Need, NodeRequest
from stoker.providers.ray import wanted
from stoker.providers.ray.jobs import RayCluster
from stoker.providers.ray.wanted import RayPlace

LARGE = {"CPU": 8.0, "GPU": 2.0, "memory": 32e9, "accelerator_type:A100": 1.0}
SMALL = {"CPU": 2.0, "memory": 8e9}
FIXED = RayCluster((LARGE, SMALL, SMALL), grows=False)


def test_a_cluster_names_its_dashboard_and_takes_precedence_over_the_surroundings() -> None:
    assert wanted.place({}, "") == RayPlace("")
    assert wanted.place({}, "http://head:8265/") == RayPlace("http://head:8265")
    assert wanted.place({"address": "https://gpu", "python": "/opt/python"}, "http://head:8265") == RayPlace(
        "https://gpu", "/opt/python"
    )


@pytest.mark.parametrize(
    "address", ["ray://head:10001", "auto", "head:6379", "http://", "http://head:port", "ftp://head"]
)
def test_an_address_that_is_no_dashboard_is_refused(address: str) -> None:
    with pytest.raises(JobInvalid) as refused:
        wanted.place({"address": address}, "")
    assert [(problem.field, problem.found) for problem in refused.value.problems] == [("address", f"`{address}`")]


def test_an_unknown_setting_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(JobInvalid) as refused:
        wanted.place({"adress": "http://head:8265"}, "")
    assert refused.value.problems[0].nearest == "address"


def test_needs_become_resources_of_ray() -> None:
    assert wanted.bundle(Need()) == {"CPU": 1}
    asked = Need(cpus=4, gpus=2, gpu="A100", memory_gb=1.5)
    assert wanted.bundle(asked) == {"CPU": 4, "GPU": 2, "accelerator_type:A100": 0.001, "memory": 1_500_000_000}


@pytest.mark.parametrize(
    ("asked", "field", "most"),
    [
        (Need(gpus=4), "gpus", "2"),
        (Need(cpus=9), "cpus", "8"),
        (Need(memory_gb=33), "memory", "32 GB"),
        (Need(gpus=1, gpu="H100"), "gpu", "`A100`"),
        (Need(nodes=4), "nodes", "3"),
        (Need(nodes=2, cpus=4), "nodes", "1"),
    ],
)
def test_what_a_cluster_without_autoscaler_lacks_is_refused_with_what_it_has(
    asked: Need, field: str, most: str
) -> None:
    with pytest.raises(JobInvalid) as refused:
        wanted.check(FIXED, asked)
    (problem,) = refused.value.problems
    assert problem.field == field
    assert most in problem.expected
    wanted.check(RayCluster(FIXED.nodes, grows=True), asked)


def test_what_it_has_is_not_refused() -> None:
    for asked in (Need(), Need(nodes=3, cpus=2), Need(gpus=2, gpu="A100", memory_gb=32)):
        wanted.check(FIXED, asked)


def test_secrets_are_in_what_is_sent_and_not_in_the_command_line(tmp_path: Path) -> None:
    agent = tmp_path / "agent.pyz"
    agent.write_bytes(b"agent")
    request = NodeRequest("r-1", "orders", "file:///store", secrets={"HF_TOKEN": "hidden-17"})
    given = wanted.given("stoker-1", "mark", "stops-", {"CPU": 1}, [request])
    with zipfile.ZipFile(io.BytesIO(wanted.packed(given, agent))) as packed:
        known = json.loads(packed.read("given.json"))
        assert packed.read("agent.pyz") == b"agent"
        compile(packed.read("driver.py"), "driver.py", "exec")
    assert known["nodes"][0]["variables"] == {"HF_TOKEN": "hidden-17", "STOKER_NODE_KEY": "r-1"}
    assert "hidden-17" not in wanted.entrypoint("python", "stoker-1.zip")
