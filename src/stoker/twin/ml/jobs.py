"""Command jobs: submitted, read, listed and cancelled. What happens to them is in `running`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from stoker.twin.arm import resources
from stoker.twin.arm.ask import ArmAnswer, Ask, accepted, begin, needed, page, route, shown
from stoker.twin.ml import COMPUTES, JOBS, WORKSPACES, assets
from stoker.twin.ml.workspaces import default_output, named_output, workspace_of
from stoker.twin.refusal import conflict, invalid
from stoker.twin.state import CloudState, Resource

ENDED = ("Completed", "Failed", "Canceled")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,254}$")
_KINDS = ("PyTorch", "Mpi", "TensorFlow")
_FIXED = ("command", "codeId", "environmentId", "computeId", "distribution", "resources", "inputs")
_LOOSE = ("tags", "displayName", "description", "properties", "isArchived")


@route("PUT", JOBS)
def put(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    """A new job is queued. Of one that exists only its labels change."""
    workspace = workspace_of(cloud, ask)
    given = dict(needed(ask.body, "properties"))
    if there := cloud.find(ask.id):
        return _relabelled(cloud, there, given)
    if not _NAME.match(ask.target.name):
        raise invalid(f"The job name '{ask.target.name}' is invalid: letters, digits, '-' and '_'.", "UserError")
    if given.get("jobType") != "Command":
        raise invalid(f"The twin has jobs of type Command, and no {given.get('jobType')} jobs.", "UserError")
    _check(cloud, workspace, given)
    outputs = {
        name: {"jobOutputType": "uri_folder", "mode": "ReadWriteMount", **one, "uri": one.get("uri") or where}
        for name, one in (given.get("outputs") or {}).items()
        if (where := named_output(ask.target.name, name))
    }
    studio = f"{ask.base}/studio/runs/{ask.target.name}?wsid={workspace.id}"
    properties = {
        "displayName": ask.target.name,
        "experimentName": "Default",
        "isArchived": False,
        "tags": {},
        "properties": {},
        **given,
        "resources": {"instanceCount": 1, **(given.get("resources") or {})},
        "outputs": {**outputs, "default": default_output(ask.target.name)},
        "status": "Queued",
        "services": {
            "Studio": {"jobServiceType": "Studio", "endpoint": studio, "port": None},
            "Tracking": {"jobServiceType": "Tracking", "endpoint": workspace.properties["mlFlowTrackingUri"]},
        },
    }
    by = {word: str(ask.claims.get(word, "")) for word in ("appid", "oid")}
    body = {"properties": properties, "systemData": {"createdAt": ask.stamp()}}
    made = Resource(ask.id, body, ask.now, {"by": by})
    return cloud.put(made), ArmAnswer(201, made.answer())


def _relabelled(cloud: CloudState, there: Resource, given: Mapping[str, Any]) -> tuple[CloudState, ArmAnswer]:
    for word in _FIXED:
        if given.get(word) not in (None, there.properties.get(word)):
            raise conflict(f"The job {there.name} exists, and its {word} cannot be changed.", "UserError")
    there = there.having(**{word: given[word] for word in _LOOSE if word in given})
    return cloud.put(there), ArmAnswer(200, there.answer())


def _check(cloud: CloudState, workspace: Resource, given: dict[str, Any]) -> None:
    """What it refers to is there, and its nodes fit the compute."""
    needed(given, "command")
    compute = cloud.find(str(needed(given, "computeId")))
    if compute is None or compute.kind != COMPUTES or not compute.id.lower().startswith(workspace.id.lower()):
        name = str(given["computeId"]).rsplit("/", 1)[-1]
        raise invalid(f"The specified compute target {name} was not found in workspace {workspace.name}.", "UserError")
    count = (given.get("resources") or {}).get("instanceCount", 1)
    most = compute.properties["properties"]["scaleSettings"]["maxNodeCount"]
    if not isinstance(count, int) or not 1 <= count <= most:
        raise invalid(f"The job needs {count} nodes, but compute {compute.name} has at most {most}.", "UserError")
    assets.resolve(cloud, workspace, "environments", str(needed(given, "environmentId")))
    if given.get("codeId"):
        assets.resolve(cloud, workspace, "codes", str(given["codeId"]))
    kind = (given.get("distribution") or {}).get("distributionType", "PyTorch")
    if kind not in _KINDS:
        raise invalid(f"The distribution {kind} is not known: {', '.join(_KINDS)} are.", "UserError")


@route("GET", JOBS)
def get(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    workspace_of(cloud, ask)
    return cloud, ArmAnswer(200, resources.require(cloud, ask).answer())


@route("GET", WORKSPACES, "jobs")
def list_all(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    """The newest first; archived ones where they are asked for."""
    found = [one for one in cloud.below(resources.require(cloud, ask).id) if one.kind == JOBS]
    view = ask.query.get("listViewType", "ActiveOnly")
    if view != "All":
        found = [one for one in found if one.properties["isArchived"] == (view == "ArchivedOnly")]
    if tag := ask.query.get("tag"):
        name, _, value = tag.partition("=")
        found = [one for one in found if name in one.properties["tags"] and value in ("", one.properties["tags"][name])]
    return cloud, page(ask, shown(list(reversed(found))))


@route("POST", JOBS, "cancel")
def cancel(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    job = resources.require(cloud, ask)
    if job.properties["status"] not in ENDED:
        cloud = cloud.put(job.having(status="CancelRequested"))
    cloud, operation = begin(cloud, ask, "run", 0.2)
    return cloud, accepted(ask, replace(operation, about=job.id))


@route("DELETE", JOBS)
def delete(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    job = cloud.find(ask.id)
    if job is None:
        return cloud, ArmAnswer(204)
    if job.properties["status"] not in ENDED:
        raise conflict(f"The job {job.name} is {job.properties['status']}; cancel it first.", "UserError")
    cloud, operation = begin(cloud, ask, "delete", 0.2)
    return cloud, accepted(ask, operation)
