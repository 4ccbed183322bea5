"""The status of a long-running operation, and its result once it has one."""

from __future__ import annotations

from typing import Any

from stoker.twin.arm.requests.ask import RETRY_AFTER_S, ArmAnswer, Ask, route
from stoker.twin.refusal import Refused
from stoker.twin.state import CloudState, Operation

NAMESPACES = ("Microsoft.Compute", "Microsoft.Network", "Microsoft.Resources", "Microsoft.Storage")


def status(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    operation = _find(cloud, ask)
    body: dict[str, Any] = {
        "name": operation.id,
        "status": operation.status,
        "startTime": ask.stamp(operation.started_at),
    }
    if operation.open:
        return cloud, ArmAnswer(200, body, {"Retry-After": str(RETRY_AFTER_S)})
    body["endTime"] = ask.stamp(operation.ended_at)
    if operation.error:
        body["error"] = dict(operation.error)
    elif operation.result is not None:
        body["properties"] = {"output": operation.result}
    return cloud, ArmAnswer(200, body)


def result(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    operation = _find(cloud, ask)
    if operation.open:
        again = {"Location": ask.url(ask.path, monitor="true"), "Retry-After": str(RETRY_AFTER_S)}
        return cloud, ArmAnswer(202, None, again)
    if operation.error:
        raise Refused(409, str(operation.error["code"]), str(operation.error["message"]))
    made = cloud.find(operation.about) if operation.verb == "put" and operation.result is None else None
    return cloud, ArmAnswer(200, made.answer() if made else operation.result)


def _find(cloud: CloudState, ask: Ask) -> Operation:
    operation = cloud.operations.get(ask.target.name)
    if operation is None:
        raise Refused(404, "NotFound", f"The operation '{ask.target.name}' could not be found.")
    return operation


for _namespace in NAMESPACES:
    route("GET", f"{_namespace}/locations/operations")(status)
    route("GET", f"{_namespace}/locations/operationResults")(result)
