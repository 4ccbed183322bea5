"""What the nodes of a job are told: its command, files, and the variables that Azure ML sets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from stoker.twin import tokens
from stoker.twin.ml import assets
from stoker.twin.ml.access import blob_place, default_output, place
from stoker.twin.state import CloudState, Resource

_PORT = 6105  # of MASTER_ADDR
_LINKS = ("uri_file", "uri_folder", "mltable", "custom_model", "mlflow_model", "triton_model")


def order(cloud: CloudState, job: Resource, addresses: list[str], attempt: int, now: datetime) -> list[dict[str, Any]]:
    """One for each node. Refused where it refers to something that is not there."""
    given = job.properties
    workspace = cloud.resources[job.id.rsplit("/jobs/", 1)[0].lower()]
    processes = int((given.get("distribution") or {}).get("processCountPerInstance") or 1)
    common = {
        "try": attempt,
        "command": given["command"],
        "code": _code(cloud, workspace, given, now),
        "inputs": {name: _input(cloud, workspace, one, now) for name, one in (given.get("inputs") or {}).items()},
        "outputs": _outputs(cloud, workspace, given, now),
        "logs": place(cloud, workspace, str(default_output(job.name)["uri"]) + "/", now, "rcwl"),
        "distributed": bool(given.get("distribution")),
    }
    base = {**_variables(cloud, workspace, job, addresses), "MLFLOW_TRACKING_TOKEN": _token(cloud, job, now)}
    found = []
    for node in range(len(addresses)):
        ranks = range(node * processes, (node + 1) * processes)
        world = processes * len(addresses)
        variables = [
            {**base, **_rank(given.get("distribution") or {}, addresses, node, rank, processes, world)}
            for rank in ranks
        ]
        found.append({**common, "node": node, "first": ranks[0], "variables": variables})
    return found


def _code(cloud: CloudState, workspace: Resource, given: Mapping[str, Any], now: datetime) -> dict[str, str] | None:
    if not given.get("codeId"):
        return None
    code = assets.resolve(cloud, workspace, "codes", str(given["codeId"]))
    return _link(cloud, workspace, str(code.properties["codeUri"]), now)


def _input(cloud: CloudState, workspace: Resource, one: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    if one.get("jobInputType") == "literal":
        return {"value": one["value"]}
    uri = str(one["uri"])
    if (uri.startswith("azureml:") and not uri.startswith("azureml://")) or (
        "/data/" in uri and uri.startswith("/sub")
    ):
        uri = str(assets.resolve(cloud, workspace, "data", uri).properties["dataUri"])
    if one.get("mode") == "Direct":
        return {"value": uri}
    return {**_link(cloud, workspace, uri, now), "file": one.get("jobInputType") == "uri_file"}


def _link(cloud: CloudState, workspace: Resource, uri: str, now: datetime) -> dict[str, str]:
    return place(cloud, workspace, uri, now) if uri.startswith("azureml:") else blob_place(cloud, uri, now)


def _outputs(cloud: CloudState, workspace: Resource, given: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    named = {name: one for name, one in given["outputs"].items() if name != "default"}
    return {name: place(cloud, workspace, str(one["uri"]), now, "rcwl") for name, one in named.items()}


def _variables(cloud: CloudState, workspace: Resource, job: Resource, addresses: list[str]) -> dict[str, str]:
    uri = str(workspace.properties["mlFlowTrackingUri"])
    return {
        **{name: str(value) for name, value in (job.properties.get("environmentVariables") or {}).items()},
        "AZUREML_RUN_ID": job.name,
        "AZUREML_EXPERIMENT_ID": str(job.properties["experimentName"]),
        "AZUREML_ARM_SUBSCRIPTION": cloud.subscription,
        "AZUREML_ARM_RESOURCEGROUP": workspace.group,
        "AZUREML_ARM_WORKSPACE_NAME": workspace.name,
        "AZUREML_ARM_PROJECT_NAME": str(job.properties["experimentName"]),
        "AZUREML_NODE_COUNT": str(len(addresses)),
        "MLFLOW_TRACKING_URI": uri,
        "MLFLOW_RUN_ID": job.name,
        "MLFLOW_EXPERIMENT_NAME": str(job.properties["experimentName"]),
        "AZ_BATCH_HOST_LIST": ",".join(addresses),
        "AZ_BATCHAI_NUM_GPUS_FOUND": "0",
    }


def _token(cloud: CloudState, job: Resource, now: datetime) -> str:
    """Of whoever submitted the job."""
    by = job.secret["by"]
    return str(tokens.issue(cloud, by["appid"], by["oid"], "ml", now.timestamp())["access_token"])


def _rank(
    given: Mapping[str, Any], addresses: list[str], node: int, rank: int, processes: int, world: int
) -> dict[str, str]:
    """What a process of a distributed job finds in its environment."""
    match given.get("distributionType"):
        case "PyTorch":
            return {**_torch(addresses, node, world), "RANK": str(rank), "LOCAL_RANK": str(rank % processes)}
        case "Mpi":
            return {
                "OMPI_COMM_WORLD_RANK": str(rank),
                "OMPI_COMM_WORLD_LOCAL_RANK": str(rank % processes),
                "OMPI_COMM_WORLD_SIZE": str(world),
                "OMPI_COMM_WORLD_LOCAL_SIZE": str(processes),
                "OMPI_COMM_WORLD_NODE_RANK": str(node),
                "AZ_BATCHAI_MPI_MASTER_NODE": addresses[0],
                "AZ_BATCH_MASTER_NODE": f"{addresses[0]}:{_PORT}",
            }
        case "TensorFlow":
            return {"TF_CONFIG": json.dumps(_tensorflow(given, addresses, rank))}
    return {"NODE_RANK": str(node), "AZ_BATCH_MASTER_NODE": f"{addresses[0]}:{_PORT}"}


def _torch(addresses: list[str], node: int, world: int) -> dict[str, str]:
    return {
        "MASTER_ADDR": addresses[0],
        "MASTER_PORT": str(_PORT),
        "WORLD_SIZE": str(world),
        "NODE_RANK": str(node),
        "AZ_BATCH_MASTER_NODE": f"{addresses[0]}:{_PORT}",
    }


def _tensorflow(given: Mapping[str, Any], addresses: list[str], rank: int) -> dict[str, Any]:
    """Parameter servers come after the workers."""
    servers = int(given.get("parameterServerCount") or 0)
    hosts = [f"{one}:{_PORT + 1}" for one in addresses]
    workers = hosts[: len(hosts) - servers]
    cluster = {"worker": workers, **({"ps": hosts[len(workers) :]} if servers else {})}
    if rank < len(workers):
        return {"cluster": cluster, "task": {"type": "worker", "index": rank}, "environment": "cloud"}
    return {"cluster": cluster, "task": {"type": "ps", "index": rank - len(workers)}, "environment": "cloud"}
