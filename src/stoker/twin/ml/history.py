"""The services of a workspace beside Resource Manager: discovery, run history with log files, and MLflow's tracking."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from stoker.twin import rights, tokens
from stoker.twin.ml import JOBS, WORKSPACES
from stoker.twin.ml.workspaces import account_of, default_output, signed
from stoker.twin.refusal import Refused, invalid, not_found
from stoker.twin.state import CloudState, Resource
from stoker.twin.web.server import Response, WebRequest

Answer = tuple[CloudState, Response]
_SCOPE = re.compile(
    r"/(?P<service>history|mlflow|data|metric)/(?P<version>v[0-9.]+)"
    r"(?P<workspace>/subscriptions/[^/]+/resource[gG]roups/[^/]+/providers/Microsoft\.MachineLearningServices/"
    r"workspaces/[^/]+)/(?P<rest>.*)$"
)
_MOST_POINTS = 20_000  # of a job: the twin keeps them with its state


def belongs(path: str) -> bool:
    return path.startswith(("/discovery", "/history/", "/mlflow/", "/data/v", "/metric/v"))


def answer(cloud: CloudState, request: WebRequest, now: datetime) -> Answer:
    """The next state and the response; Refused as in Resource Manager."""
    if request.path.startswith("/discovery"):
        return cloud, Response(200, dict.fromkeys(("api", "history", "mlflow", "data", "studio"), request.base))
    found = _SCOPE.match(request.path)
    if not found:
        raise Refused(404, "NotFound", f"the twin has no service at {request.path}; it has history, mlflow and data")
    claims = tokens.read(cloud, request.headers.get("authorization", ""), now.timestamp())
    workspace = cloud.find(found["workspace"])
    if workspace is None or workspace.kind != WORKSPACES:
        raise not_found(WORKSPACES, found["workspace"].rsplit("/", 1)[-1], "")
    verb = "read" if request.method == "GET" or found["rest"].endswith(("rundata", "search", "query")) else "write"
    rights.check(cloud, claims, f"{WORKSPACES}/jobs/{verb}", workspace.id)
    body = json.loads(request.body or b"{}")
    rest = found["rest"].strip("/")
    for pattern, handler in _ROUTES:
        if match := pattern.fullmatch(f"{found['service']} {request.method} {rest}"):
            return handler(cloud, workspace, HistoryCall(request, body, now, match.groupdict()))
    raise Refused(404, "NotFound", f"the twin does not answer {request.method} {rest} of {found['service']}")


class HistoryCall:
    """A request of one of these services, with the words of its path."""

    def __init__(self, request: WebRequest, body: Mapping[str, Any], now: datetime, words: Mapping[str, str]) -> None:
        self.query, self.body, self.now, self.words = request.query, body, now, words


def _job(cloud: CloudState, workspace: Resource, name: str) -> Resource:
    found = cloud.find(f"{workspace.id}/jobs/{name}")
    if found is None or found.kind != JOBS:
        raise Refused(404, "UserError", f"Run {name} was not found.")
    return found


def _run(cloud: CloudState, workspace: Resource, call: HistoryCall) -> Answer:
    return cloud, Response(200, _told(_job(cloud, workspace, call.words["run"])))


def _changed(cloud: CloudState, workspace: Resource, call: HistoryCall) -> Answer:
    """Tags, the name to show, the description, and whether it is archived."""
    job, given = _job(cloud, workspace, call.words["run"]), call.body
    new = {word: given[word] for word in ("displayName", "description") if given.get(word) is not None}
    if given.get("tags") is not None:
        new["tags"] = {**job.properties["tags"], **given["tags"]}
    if given.get("hidden") is not None:
        new["isArchived"] = bool(given["hidden"])
    job = job.having(**new)
    return cloud.put(job), Response(200, _told(job))


def _data(cloud: CloudState, workspace: Resource, call: HistoryCall) -> Answer:
    job = _job(cloud, workspace, str(call.body.get("runId")))
    return cloud, Response(200, {"runMetadata": _told(job), "runMetrics": None, "etag": None})


def _details(cloud: CloudState, workspace: Resource, call: HistoryCall) -> Answer:
    """With the log files that the job's processes write, each at a signed address."""
    job = _job(cloud, workspace, call.words["run"])
    account = account_of(cloud, workspace)
    top = str(default_output(job.name)["uri"]).rsplit("workspaceartifactstore/", 1)[1]
    names = _log_names(job) if job.secret.get("try") else []
    logs = {one: signed(cloud, account, "azureml", call.now, "r", f"{top}/{one}") for one in names}
    return cloud, Response(200, {**_told(job), "logFiles": logs, "inputDatasets": [], "outputDatasets": []})


def _log_names(job: Resource) -> list[str]:
    given = job.properties
    if not given.get("distribution"):
        return ["user_logs/std_log.txt"]
    each = int(given["distribution"].get("processCountPerInstance") or 1)
    return [f"user_logs/std_log_process_{rank}.txt" for rank in range(each * given["resources"]["instanceCount"])]


def _told(job: Resource) -> dict[str, Any]:
    given, inner = job.properties, job.secret
    return {
        "runId": job.name,
        "runUuid": job.name,
        "rootRunId": job.name,
        "experimentId": given["experimentName"],
        "runType": "azureml.scriptrun",
        "displayName": given["displayName"],
        "description": given.get("description"),
        "status": given["status"],
        "startTimeUtc": inner.get("startTimeUtc"),
        "endTimeUtc": inner.get("endTimeUtc"),
        "createdUtc": job.body["systemData"]["createdAt"],
        "hidden": given["isArchived"],
        "tags": given["tags"],
        "properties": given["properties"],
        "target": str(given["computeId"]).rsplit("/", 1)[-1],
        "warnings": [],
        "error": inner.get("error"),
        "outputs": {name: {"assetId": _asset(job, name), "type": "uri_folder"} for name in _named(job)},
    }


def _logged(cloud: CloudState, workspace: Resource, call: HistoryCall) -> Answer:
    """`log-metric` and `log-batch`: points are kept in the order in which they come."""
    given = call.body
    job = _job(cloud, workspace, str(given.get("run_id") or given.get("run_uuid")))
    points = given.get("metrics") if "metrics" in given else [given] if "key" in given else []
    kept = [*job.secret.get("metrics", ()), *(_point(one) for one in points or ())][-_MOST_POINTS:]
    tags = {str(one["key"]): str(one["value"]) for one in given.get("tags") or ()}
    job = job.having(tags={**job.properties["tags"], **tags}) if tags else job
    return cloud.put(replace(job, secret={**job.secret, "metrics": kept})), Response(200, {})


def _point(one: Mapping[str, Any]) -> dict[str, Any]:
    try:
        number = float(one["value"])
        return {
            "key": str(one["key"]),
            "value": number,
            "timestamp": int(one["timestamp"]),
            "step": int(one.get("step", 0)),
        }
    except (KeyError, TypeError, ValueError):
        raise invalid("A metric has a key, a number as value, and a timestamp.", "INVALID_PARAMETER_VALUE") from None


def _tracked(cloud: CloudState, workspace: Resource, call: HistoryCall) -> Answer:
    job = _job(cloud, workspace, call.query.get("run_id") or call.query.get("run_uuid") or "")
    newest = {one["key"]: one for one in job.secret.get("metrics", ())}
    info = {"run_id": job.name, "run_uuid": job.name, "experiment_id": job.properties["experimentName"]}
    state = {"Completed": "FINISHED", "Failed": "FAILED", "Canceled": "KILLED"}.get(job.properties["status"], "RUNNING")
    tags = [{"key": key, "value": value} for key, value in job.properties["tags"].items()]
    data = {"metrics": list(newest.values()), "params": [], "tags": tags}
    return cloud, Response(200, {"run": {"info": {**info, "status": state, "lifecycle_stage": "active"}, "data": data}})


def _points(cloud: CloudState, workspace: Resource, call: HistoryCall) -> Answer:
    job = _job(cloud, workspace, call.query.get("run_id") or call.query.get("run_uuid") or "")
    named = [one for one in job.secret.get("metrics", ()) if one["key"] == call.query.get("metric_key")]
    return cloud, Response(200, {"metrics": named})


def _named(job: Resource) -> list[str]:
    return [name for name in job.properties["outputs"] if name != "default"]


def _asset(job: Resource, name: str) -> str:
    return f"azureml://jobs/{job.name}/outputs/{name}"


def _uris(cloud: CloudState, workspace: Resource, call: HistoryCall) -> Answer:
    """Where the outputs with these ids are."""
    found = {}
    for id in call.body.get("values") or ():
        _, _, rest = str(id).partition("azureml://jobs/")
        job = _job(cloud, workspace, rest.split("/")[0])
        one = job.properties["outputs"].get(rest.rsplit("/", 1)[-1])
        if one:
            found[str(id)] = {"uri": _long(workspace, str(one["uri"])), "type": one["jobOutputType"]}
    return cloud, Response(200, {"values": found})


def _long(workspace: Resource, uri: str) -> str:
    place = (
        f"subscriptions/{workspace.target.subscription}/resourcegroups/{workspace.group}/workspaces/{workspace.name}"
    )
    return uri.replace("azureml://", f"azureml://{place}/", 1)


_RUN = r"(?:experiments/[^/]+/)?runs/(?P<run>[^/]+)"
_ROUTES: tuple[tuple[re.Pattern[str], Callable[[CloudState, Resource, HistoryCall], Answer]], ...] = (
    (re.compile(rf"history GET {_RUN}"), _run),
    (re.compile(rf"history GET {_RUN}/details"), _details),
    (re.compile(rf"history (?:PATCH|PUT|POST) {_RUN}"), _changed),
    (re.compile(r"history POST rundata"), _data),
    (re.compile(r"mlflow POST api/2.0/mlflow/runs/(?:log-metric|log-batch|set-tag|update)"), _logged),
    (re.compile(r"mlflow GET api/2.0/mlflow/runs/get"), _tracked),
    (re.compile(r"mlflow GET api/2.0/mlflow/metrics/get-history"), _points),
    (re.compile(r"data POST dataversion/batchGetResolvedUris"), _uris),
)
