"""What a job and a cluster's settings become in a pod."""

from __future__ import annotations

import pytest

from kubeschema import check
from stoker.errors import JobInvalid
from stoker.model.node import Need, NodeRequest, Pool
from stoker.providers.kubernetes import manifests
from stoker.providers.kubernetes.wanted import models, wanted

ALL = {
    "context": "arn:aws:eks:eu-west-1:1:cluster/ml",
    "namespace": "team",
    "queue": "gpus",
    "image": "registry.example.org:5000/ml/base@sha256:abc",
    "selector": "cloud.google.com/gke-spot=true,pool=gpu",
    "tolerations": "nvidia.com/gpu:NoSchedule,spot=true:NoExecute,any",
    "volumes": "store:/mnt/store,cache:/stoker/environments",
    "service_account": "trainer",
    "pull_secret": "registry",
    "priority_class": "high",
    "gpu_resource": "amd.com/gpu",
    "user": "1000",
    "grace": "90",
}
GANG = [NodeRequest(key, "orders", "file:///mnt/store", labels={"run": "ants-1"}) for key in ("g-1", "g-1-1")]


@pytest.mark.parametrize("settings", [{}, ALL], ids=["plain", "all settings"])
@pytest.mark.parametrize("need", [Need(), Need(cpus=2, memory_gb=1.5, gpus=2)], ids=["one CPU", "GPUs"])
@pytest.mark.parametrize("nodes", [1, 2])
def test_every_manifest_is_what_the_official_schema_allows(settings: dict[str, str], need: Need, nodes: int) -> None:
    asked = wanted(Need(cpus=need.cpus, memory_gb=need.memory_gb, gpus=need.gpus, pool=Pool("k", settings)))
    check("jobs", manifests.job("stoker-m-g-1", "mark", asked, GANG[:nodes], 60))
    check("services", manifests.service("stoker-m-g-1", "mark", "uid"))


def test_all_settings_reach_the_pod() -> None:
    asked = wanted(Need(gpus=4, memory_gb=8, pool=Pool("k", ALL)))
    body = manifests.job("n", "mark", asked, GANG, 60)
    spec, pod = body["spec"], body["spec"]["template"]["spec"]
    assert (spec["suspend"], spec["backoffLimitPerIndex"], "backoffLimit" in spec) == (True, 0, False)
    assert pod["nodeSelector"] == {"cloud.google.com/gke-spot": "true", "pool": "gpu"}
    assert pod["tolerations"] == [
        {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
        {"key": "spot", "operator": "Equal", "value": "true", "effect": "NoExecute"},
        {"key": "any", "operator": "Exists"},
    ]
    assert pod["containers"][0]["resources"]["limits"] == {"memory": "8000M", "amd.com/gpu": "4"}
    assert {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "4000M"}} in pod["volumes"]
    assert (pod["terminationGracePeriodSeconds"], pod["securityContext"]["runAsUser"]) == (90, 1000)
    assert (pod["priorityClassName"], pod["serviceAccountName"], pod["subdomain"]) == ("high", "trainer", "n")


def test_a_pod_gets_no_token_of_the_cluster_unless_it_has_an_account() -> None:
    for settings, mounts in (({}, False), ({"service_account": "trainer"}, True)):
        asked = wanted(Need(pool=Pool("k", settings)))
        pod = manifests.job("n", "mark", asked, GANG[:1], 60)["spec"]["template"]["spec"]
        assert pod["automountServiceAccountToken"] is mounts


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("namespace", "Team"),
        ("queue", "a b"),
        ("selector", "a"),
        ("selector", "a=b,"),
        ("tolerations", "a:Always"),
        ("volumes", "claim"),
        ("volumes", "claim:relative"),
        ("user", "0"),
        ("grace", "soon"),
        ("image", ""),
        ("nodes", "3"),
    ],
)
def test_a_setting_that_is_none_is_refused(name: str, value: str) -> None:
    with pytest.raises(JobInvalid) as refused:
        wanted(Need(pool=Pool("k", {name: value})))
    assert refused.value.problems[0].field == f"setting {name}"


def test_names_fit_into_a_host_name_and_differ() -> None:
    keys = ["ants-1-1", "Ants-1-1", "ants_1_1", "x" * 200, "x" * 201, "-", "é"]
    found = {manifests.name("0123456789ab", key) for key in keys}
    assert len(found) == len(keys)
    assert max(map(len, found)) <= 57
    assert all(one.strip("-") == one and one.isascii() and one.islower() for one in found)


@pytest.mark.parametrize(
    ("gpu", "fitting"),
    [
        ("A100", ["NVIDIA-A100-SXM4-40GB", "NVIDIA-A100-SXM4-80GB"]),
        ("A100-80GB", ["NVIDIA-A100-SXM4-80GB"]),
        ("A10", ["NVIDIA-A10"]),
        ("H100", []),
    ],
)
def test_a_model_of_a_gpu_is_a_part_of_its_label(gpu: str, fitting: list[str]) -> None:
    assert models(["NVIDIA-A100-SXM4-80GB", "NVIDIA-A100-SXM4-40GB", "NVIDIA-A10"], gpu) == fitting
