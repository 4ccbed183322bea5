"""What time brings to compute clusters and their jobs: nodes come and go, jobs start on them, and end; and what the
nodes of a job are told."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from stoker.twin import ids, tokens
from stoker.twin.arm.ask import Ask
from stoker.twin.ml import COMPUTES, JOBS, assets, nodes
from stoker.twin.ml.jobs import ENDED
from stoker.twin.ml.nodes import seconds
from stoker.twin.ml.workspaces import blob_place, default_output, place
from stoker.twin.refusal import Refused
from stoker.twin.state import CloudState, Resource

Wall = Callable[[float], datetime]

_RETRY_S = 5.0  # after an allocation that failed
_AGAIN_S = 5.0  # from a preemption until the job may start again
_PREEMPTED = "PreemptionError: Nodes of this job got pre-empted. Check if the run has failed or restarted."


def advance(cloud: CloudState, now: float, wall: Wall) -> CloudState:
    """The same object where nothing is to be done."""
    for compute in [one for one in cloud.resources.values() if one.kind == COMPUTES]:
        cloud = _tended(cloud, compute, now, wall)
    return cloud


def _tended(cloud: CloudState, compute: Resource, now: float, wall: Wall) -> CloudState:
    """Jobs in the order of their submission: one that does not fit yet keeps back those after it."""
    jobs = [one for one in cloud.below(compute.id.rsplit("/computes/", 1)[0]) if one.kind == JOBS]
    mine = [one for one in jobs if str(one.properties["computeId"]).lower() == compute.id.lower()]
    open_ones = [one for one in mine if one.properties["status"] not in ENDED]
    gone = compute.properties["provisioningState"] == "Deleting"
    for job in open_ones:
        if job.secret.get("runs"):
            cloud = _settled(cloud, job, now, wall)
        elif job.properties["status"] == "CancelRequested" or gone:
            cloud = _ended(
                cloud, job, "Failed" if gone else "Canceled", now, wall, "the compute was deleted" if gone else ""
            )
    if gone:
        return cloud
    waiting = [found for one in open_ones if (found := cloud.find(one.id)) and _waits(found, now)]
    cloud, wanted = _started(cloud, compute, waiting, now, wall)
    return _scaled(cloud, compute, wanted, now, wall)


def _waits(job: Resource, now: float) -> bool:
    free = job.properties["status"] == "Queued" and not job.secret.get("runs")
    return free and now >= float(job.secret.get("again_at", 0.0))


def _busy(cloud: CloudState, compute: Resource) -> dict[str, str]:
    """The nodes that jobs have now, and which."""
    scope = compute.id.rsplit("/computes/", 1)[0]
    jobs = (one for one in cloud.below(scope) if one.kind == JOBS and one.properties["status"] not in ENDED)
    return {vm: job.name for job in jobs for vm in job.secret.get("runs", {})}


def _started(
    cloud: CloudState, compute: Resource, waiting: list[Resource], now: float, wall: Wall
) -> tuple[CloudState, int]:
    """Whatever fits starts; and how many nodes the cluster should have."""
    busy = _busy(cloud, compute)
    free = [vm.id for vm in nodes.of(cloud, compute) if vm.id.lower() not in busy and nodes.running(cloud, vm.id)]
    wanted = len(busy)
    for job in waiting:
        count = int(job.properties["resources"]["instanceCount"])
        wanted += count
        if len(free) >= count:
            chosen, free = free[:count], free[count:]
            cloud = _begun(cloud, job, chosen, now, wall)
    return cloud, wanted


def _begun(cloud: CloudState, job: Resource, chosen: list[str], now: float, wall: Wall) -> CloudState:
    machines = [one for vm in chosen if (one := nodes.running(cloud, vm))]
    attempt = int(job.secret.get("try", 0)) + 1
    try:
        orders = order(cloud, job, [one.address for one in machines], attempt, wall(now))
    except Refused as refusal:  # what it refers to is gone
        return _ended(cloud, job, "Failed", now, wall, refusal.message)
    runs = {}
    for machine, told in zip(machines, orders, strict=True):
        cloud, runs[machine.vm.lower()] = nodes.ordered(cloud, machine, nodes.job_script(job.name, told), job.id, now)
    started = job.secret.get("startTimeUtc") or wall(now).isoformat()
    secret = {**job.secret, "runs": runs, "try": attempt, "started": now, "startTimeUtc": started, "stopping": False}
    return cloud.put(replace(job.having(status="Running"), secret=secret))


def _settled(cloud: CloudState, job: Resource, now: float, wall: Wall) -> CloudState:
    """Of a job that has nodes: it ends when all of them have, and as the first of them that failed."""
    runs: dict[str, str] = job.secret["runs"]
    found = [cloud.operations.get(one) for one in runs.values()]
    lost = bool(job.secret.get("lost")) or any(nodes.running(cloud, vm) is None for vm in runs)
    errors = [str(one.error.get("message", "")) for one in found if one and one.error]
    limit = seconds(str((job.properties.get("limits") or {}).get("timeout", "")))
    late = limit is not None and now - job.secret["started"] > limit
    cancelled = job.properties["status"] == "CancelRequested" or late
    if any(one and one.open for one in found):
        return _stopping(cloud, job, lost, now) if lost or errors or cancelled else cloud
    if cancelled:
        return _ended(cloud, job, "Canceled", now, wall, "The job exceeded its time limit." if late else "")
    if lost:
        return _after_loss(cloud, job, now, wall)
    return _ended(cloud, job, "Failed" if errors else "Completed", now, wall, errors[0] if errors else "")


def _stopping(cloud: CloudState, job: Resource, lost: bool, now: float) -> CloudState:
    """The nodes that still work on it are told to end, once."""
    if job.secret.get("stopping"):
        return cloud
    script = nodes.stop_script(job.name, int(job.secret["try"]))
    for vm in job.secret["runs"]:
        if machine := nodes.running(cloud, vm):
            cloud, _ = nodes.ordered(cloud, machine, script, job.id, now)
    return cloud.put(replace(job, secret={**job.secret, "stopping": True, "lost": lost}))


def _after_loss(cloud: CloudState, job: Resource, now: float, wall: Wall) -> CloudState:
    """A preempted job starts again from its beginning; in bad weather it fails, which has been reported, too."""
    if cloud.weather.stretch > 1:
        return _ended(cloud, job, "Failed", now, wall, _PREEMPTED)
    return cloud.put(
        replace(
            job.having(status="Queued"), secret={**job.secret, "runs": {}, "lost": False, "again_at": now + _AGAIN_S}
        )
    )


def _ended(cloud: CloudState, job: Resource, status: str, now: float, wall: Wall, why: str) -> CloudState:
    error = {"error": {"code": "UserError", "message": why}} if why else None
    secret = {**job.secret, "runs": {}, "endTimeUtc": wall(now).isoformat(), "error": error}
    return cloud.put(replace(job.having(status=status), secret=secret))


def _scaled(cloud: CloudState, compute: Resource, wanted: int, now: float, wall: Wall) -> CloudState:
    """Missing nodes are asked for, and idle ones released after their time."""
    found = cloud.find(compute.id)
    if found is None or found.properties["provisioningState"] != "Succeeded":
        return cloud
    scale = found.properties["properties"]["scaleSettings"]
    target = min(max(wanted, int(scale["minNodeCount"])), int(scale["maxNodeCount"]))
    secret: dict[str, Any] = dict(found.secret)
    here = nodes.of(cloud, found)
    if len(here) < target and now >= secret.get("retry_at", 0.0):
        cloud, error = _one_more(cloud, found, now, wall)
        secret["errors"] = [{"error": {"code": "ClusterCoreQuotaReached", "message": error}}] if error else []
        secret["retry_at"] = now + _RETRY_S if error else 0.0
    busy = _busy(cloud, found)
    idle = {vm.id.lower(): secret.get("idle", {}).get(vm.id.lower(), now) for vm in here if vm.id.lower() not in busy}
    rest_s = seconds(str(scale["nodeIdleTimeBeforeScaleDown"])) or 0.0
    for vm in here[: max(len(here) - target, 0)] if len(here) > target else ():
        since = idle.get(vm.id.lower())
        if since is not None and now - since >= rest_s and nodes.running(cloud, vm.id):
            cloud = nodes.released(cloud, vm, now)
            idle.pop(vm.id.lower())
    secret |= {"idle": idle, "busy": busy, "target": max(target, len(nodes.of(cloud, found)))}
    return cloud if secret == found.secret else cloud.put(replace(found, secret=secret))


def _one_more(cloud: CloudState, compute: Resource, now: float, wall: Wall) -> tuple[CloudState, str]:
    base = f"https://127.0.0.1:{cloud.port}"
    number = int(now * 1000)  # different at each moment: with it the weather draws whether there is capacity
    ask = Ask("PUT", compute.id, ids.read(compute.id), now, wall, {"api-version": ""}, {}, {}, base, number)
    return nodes.added(cloud, compute, ask)


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
