"""Azure Machine Learning in the twin: clusters that scale, jobs that run on them, and what it refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from twinasks import Asker, wall

from stoker.twin.arm.bodies import versions_of
from stoker.twin.ml import WORKSPACES, history, running
from stoker.twin.refusal import Refused
from stoker.twin.state import Principal, Resource
from stoker.twin.time import passing, power
from stoker.twin.time.weather import Weather, forecast
from stoker.twin.web.server import WebRequest

IDLE_S = 120.0
SCIENTIST = "f6c7c914-8db3-469d-8ca1-694a8f32e121"


class Learning(Asker):
    """With a workspace, an environment, and a cluster of up to three nodes of low priority."""

    def __init__(self, weather: Weather | None = None, **properties: Any) -> None:
        super().__init__(weather)
        self.group()
        account = self.ask(
            "PUT",
            f"{self.inside('Microsoft.Storage/storageAccounts')}/mlstore",
            {"location": "westeurope", "sku": {"name": "Standard_LRS"}, "kind": "StorageV2"},
        )
        self.top = f"{self.inside(WORKSPACES)}/demo"
        given = {"storageAccount": account.body["id"]}
        self.workspace = self.ask("PUT", self.top, {"location": "westeurope", "properties": given}).body["id"]
        self.ask("PUT", f"{self.top}/environments/base/versions/1", {"properties": {"image": "ubuntu"}})
        self.compute(**properties)
        self.pass_time(2)

    def compute(self, **properties: Any) -> Any:
        scale = {"minNodeCount": 0, "maxNodeCount": 3, "nodeIdleTimeBeforeScaleDown": "PT2M"}
        inner = {"vmSize": "STANDARD_D4S_V5", "vmPriority": "LowPriority", "scaleSettings": scale, **properties}
        body = {"location": "westeurope", "properties": {"computeType": "AmlCompute", "properties": inner}}
        return self.ask("PUT", f"{self.top}/computes/cpu", body)

    def submit(self, name: str, nodes: int = 1, **more: Any) -> Any:
        properties = {
            "jobType": "Command",
            "command": "python train.py",
            "computeId": f"{self.workspace}/computes/cpu",
            "environmentId": f"{self.workspace}/environments/base/versions/1",
            "resources": {"instanceCount": nodes},
            **more,
        }
        return self.ask("PUT", f"{self.top}/jobs/{name}", {"properties": properties}).body

    def status(self, name: str) -> str:
        return str(self.ask("GET", f"{self.top}/jobs/{name}").body["properties"]["status"])

    def nodes(self) -> int:
        told = self.ask("GET", f"{self.top}/computes/cpu").body["properties"]["properties"]
        return int(told["currentNodeCount"])

    def job(self, name: str) -> Resource:
        return self.cloud.resources[f"{self.workspace}/jobs/{name}".lower()]

    def begin(self, name: str, nodes: int = 1) -> None:
        """Its nodes are up, and its processes run on them until they are told of by `finish`."""
        self.submit(name, nodes)
        for _ in range(20):
            self.now += 0.5
            self.cloud = passing.advance(replace(self.cloud, now=self.now), self.now, wall)
            for chore in self.cloud.chores.values():
                if chore.verb != "run":
                    self.cloud = passing.performed(self.cloud, chore.id, None, "")
        assert self.status(name) == "Running"

    def finish(self, error: str = "") -> None:
        for chore in [one for one in self.cloud.chores.values() if one.verb == "run"]:
            self.cloud = passing.performed(self.cloud, chore.id, None, error)
        self.pass_time(0.1, chores=False)


@pytest.fixture
def azure() -> Learning:
    return Learning()


def test_a_cluster_grows_for_a_job_and_is_empty_again_after_its_idle_time(azure: Learning) -> None:
    assert azure.nodes() == 0
    azure.submit("first", 2)
    azure.pass_time(1)
    azure.pass_time(1)
    assert azure.status("first") == "Completed"
    assert azure.nodes() == 2
    azure.pass_time(IDLE_S - 10)
    assert azure.nodes() == 2
    azure.pass_time(20)
    assert azure.nodes() == 0
    assert not azure.cloud.instances


def test_users_see_no_vm_of_a_cluster(azure: Learning) -> None:
    azure.begin("first")
    for path in ("/providers/Microsoft.Compute/virtualMachines", "/resourcegroups", "/resources"):
        assert not [one for one in azure.ask("GET", path).body["value"] if "azureml-" in one["id"]]
    assert len(azure.cloud.instances) == 1


def test_a_job_that_needs_more_nodes_than_are_free_waits_for_its_turn(azure: Learning) -> None:
    azure.begin("first", 2)
    azure.submit("second", 2)
    azure.pass_time(1, chores=False)
    assert azure.status("second") == "Queued"
    azure.finish()
    azure.pass_time(5)
    assert [azure.status(name) for name in ("first", "second")] == ["Completed", "Completed"]


def test_a_preempted_job_starts_again_on_another_node(azure: Learning) -> None:
    azure.begin("first")
    vm = next(iter(azure.cloud.instances.values())).vm
    azure.cloud = power.evict(azure.cloud, azure.cloud.resources[vm.lower()], azure.now)
    azure.finish("the machine is gone")
    assert azure.status("first") == "Queued"
    azure.pass_time(5)
    azure.pass_time(5)
    assert azure.status("first") == "Completed"
    assert azure.job("first").secret["try"] == 2


def test_a_preempted_job_fails_in_bad_weather_as_has_been_reported() -> None:
    azure = Learning()
    azure.begin("first")
    azure.cloud = replace(azure.cloud, weather=forecast("hostile", 1))
    vm = next(iter(azure.cloud.instances.values())).vm
    azure.cloud = power.evict(azure.cloud, azure.cloud.resources[vm.lower()], azure.now)
    azure.finish("the machine is gone")
    assert azure.status("first") == "Failed"
    assert "PreemptionError" in azure.job("first").secret["error"]["error"]["message"]


def test_a_node_that_fails_ends_the_job_on_all_nodes(azure: Learning) -> None:
    azure.begin("first", 2)
    failed = next(one for one in azure.cloud.chores.values() if one.verb == "run")
    azure.cloud = passing.performed(azure.cloud, failed.id, None, "exit status 3")
    azure.pass_time(0.1, chores=False)
    assert [one for one in azure.cloud.chores.values() if "stop-1" in one.details.get("script", "")]
    azure.finish()
    assert azure.status("first") == "Failed"
    assert "exit status 3" in azure.job("first").secret["error"]["error"]["message"]


def test_jobs_are_cancelled_waiting_and_running(azure: Learning) -> None:
    azure.begin("first", 3)
    azure.submit("second", 3)
    for name in ("second", "first", "first"):
        azure.ask("POST", f"{azure.top}/jobs/{name}/cancel")
    azure.pass_time(0.1, chores=False)
    assert [azure.status(name) for name in ("first", "second")] == ["CancelRequested", "Canceled"]
    azure.finish()
    assert azure.status("first") == "Canceled"


def test_a_job_past_its_time_limit_is_cancelled(azure: Learning) -> None:
    azure.submit("first", limits={"jobLimitsType": "Command", "timeout": "PT30S"})
    azure.begin("other")
    azure.pass_time(60, chores=False)
    azure.finish()
    assert azure.status("first") == "Canceled"
    assert azure.status("other") == "Completed"


def test_a_quota_is_told_by_the_cluster_and_its_job_waits(azure: Learning) -> None:
    azure.cloud = replace(azure.cloud, quotas={"westeurope/lowprioritycores": 4})
    azure.submit("first", 2)
    azure.pass_time(1)
    azure.pass_time(1)
    told = azure.ask("GET", f"{azure.top}/computes/cpu").body["properties"]["properties"]
    assert (told["currentNodeCount"], azure.status("first")) == (1, "Queued")
    assert "quota" in told["errors"][0]["error"]["message"]


def test_a_deleted_cluster_leaves_nothing_and_fails_its_jobs(azure: Learning) -> None:
    azure.begin("first", 2)
    azure.ask("DELETE", f"{azure.top}/computes/cpu")
    azure.finish("the machine is gone")
    azure.pass_time(5)
    assert not azure.cloud.instances
    assert not [one for one in azure.cloud.resources.values() if not azure.cloud.is_visible(one)]
    assert azure.status("first") == "Failed"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"computeId": "/nowhere"}, "UserError"),
        ({"environmentId": "azureml:unknown:1"}, "UserError"),
        ({"resources": {"instanceCount": 4}}, "UserError"),
        ({"distribution": {"distributionType": "Ray"}}, "UserError"),
        ({"jobType": "Sweep"}, "UserError"),
        ({"command": ""}, "InvalidParameter"),
    ],
)
def test_a_job_that_cannot_run_is_refused(azure: Learning, changes: dict[str, Any], code: str) -> None:
    with pytest.raises(Refused) as refusal:
        azure.submit("first", **changes)
    assert refusal.value.code == code


def test_a_submitted_job_keeps_its_command_and_changes_its_tags(azure: Learning) -> None:
    azure.submit("first")
    assert azure.submit("first", tags={"a": "b"})["properties"]["tags"] == {"a": "b"}
    with pytest.raises(Refused) as refusal:
        azure.submit("first", command="rm -r /")
    assert refusal.value.status == 409


def test_a_version_of_the_api_that_the_sdk_does_not_know_is_refused(azure: Learning) -> None:
    assert "2024-01-01-preview" in versions_of(WORKSPACES)
    with pytest.raises(Refused) as refusal:
        azure.ask("GET", azure.top, version="2019-01-01")
    assert refusal.value.code == "NoRegisteredProviderFound"


def test_a_data_scientist_submits_and_neither_makes_nor_deletes_clusters(azure: Learning) -> None:
    azure.cloud = replace(azure.cloud, principals={**azure.cloud.principals, "c": Principal("c", "anna", "s", "anna")})
    scope = f"/subscriptions/{azure.cloud.subscription}/providers/Microsoft.Authorization/roleDefinitions"
    role = {"roleDefinitionId": f"{scope}/{SCIENTIST}", "principalId": "anna", "principalType": "ServicePrincipal"}
    at = f"{azure.top}/providers/Microsoft.Authorization/roleAssignments/00000000-0000-4000-8000-000000000001"
    azure.ask("PUT", at, {"properties": role})
    azure.claims = {"appid": "c", "oid": "anna"}
    assert azure.submit("first")["name"] == "first"
    with pytest.raises(Refused) as refusal:
        azure.ask("DELETE", f"{azure.top}/computes/cpu")
    assert refusal.value.code == "AuthorizationFailed"


@pytest.mark.parametrize(
    ("distribution", "wanted"),
    [
        (
            {"distributionType": "PyTorch", "processCountPerInstance": 2},
            {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "NODE_RANK": "1", "MASTER_ADDR": "10.0.0.4"},
        ),
        (
            {"distributionType": "Mpi", "processCountPerInstance": 2},
            {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "AZ_BATCHAI_MPI_MASTER_NODE": "10.0.0.4"},
        ),
    ],
)
def test_processes_find_the_variables_that_azure_ml_sets(
    azure: Learning, distribution: dict[str, Any], wanted: dict[str, str]
) -> None:
    azure.submit("first", 2, distribution=distribution, environmentVariables={"MINE": "1"})
    told = running.order(azure.cloud, azure.job("first"), ["10.0.0.4", "10.0.0.5"], 1, wall(0))
    assert [len(one["variables"]) for one in told] == [2, 2]
    found = told[1]["variables"][1]
    assert wanted.items() <= found.items()
    assert {"MINE": "1", "AZUREML_RUN_ID": "first"}.items() <= found.items()


def test_tensorflow_finds_its_cluster(azure: Learning) -> None:
    given = {"distributionType": "TensorFlow", "workerCount": 2, "parameterServerCount": 1}
    azure.submit("first", 3, distribution=given)
    told = running.order(azure.cloud, azure.job("first"), ["10.0.0.4", "10.0.0.5", "10.0.0.6"], 1, wall(0))
    last = json.loads(told[2]["variables"][0]["TF_CONFIG"])
    assert last["task"] == {"type": "ps", "index": 0}
    assert last["cluster"]["worker"] == ["10.0.0.4:6106", "10.0.0.5:6106"]


def test_metrics_are_logged_and_read_as_by_mlflow(azure: Learning) -> None:
    from stoker.twin import tokens

    azure.submit("first")
    now = wall(0)
    token = tokens.issue(azure.cloud, azure.cloud.admin, "owner", "ml", now.timestamp())["access_token"]

    def ask(method: str, rest: str, body: Any = None, **query: str) -> Any:
        path = f"/mlflow/v1.0{azure.workspace}/api/2.0/mlflow/{rest}"
        text = json.dumps(body or {}).encode()
        request = WebRequest(method, path, query, {"authorization": f"Bearer {token}"}, text, "https://twin")
        azure.cloud, answer = history.answer(azure.cloud, request, now)
        return answer.body

    points = [{"key": "loss", "value": 1 / step, "timestamp": step, "step": step} for step in (1, 2)]
    ask("POST", "runs/log-batch", {"run_id": "first", "metrics": points})
    assert ask("GET", "metrics/get-history", run_id="first", metric_key="loss")["metrics"] == points
    assert ask("GET", "runs/get", run_id="first")["run"]["data"]["metrics"] == points[1:]
    with pytest.raises(Refused) as refusal:
        ask("POST", "runs/log-batch", {"run_id": "first", "metrics": [{"key": "loss"}]})
    assert refusal.value.code == "INVALID_PARAMETER_VALUE"
