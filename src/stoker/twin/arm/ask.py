"""A request to Resource Manager as data, its response, the table of handlers, and long-running operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from stoker.twin import ids
from stoker.twin.refusal import Refused, invalid, unreadable
from stoker.twin.state import CloudState, Operation, Resource, name_uuid
from stoker.twin.web import odata

RETRY_AFTER_S = 1  # Azure says 10 or more

_PAGE = 100


@dataclass(frozen=True, slots=True)
class Ask:
    method: str
    path: str
    target: ids.ResourceTarget
    now: float
    wall: Callable[[float], datetime]
    query: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] = field(default_factory=dict)
    claims: Mapping[str, Any] = field(default_factory=dict)
    base: str = ""  # the client's URL of the twin
    number: int = 0

    @property
    def id(self) -> str:
        return self.target.id

    @property
    def version(self) -> str:
        return self.query.get("api-version", "")

    def uuid(self, *words: object) -> str:
        """A unique id for something that this request creates."""
        return name_uuid(*words, self.number, self.target.id.lower())

    def url(self, path: str, **query: str) -> str:
        return f"{self.base}{path}?{urlencode({'api-version': self.version, **query})}"

    def stamp(self, moment: float | None = None) -> str:
        return self.wall(self.now if moment is None else moment).isoformat()

    def at(self, id: str, body: Mapping[str, Any], method: str = "PUT") -> Ask:
        """A further request of the same caller, as a deployment sends for its parts."""
        return replace(
            self, method=method, path=id, target=ids.read(id), body=body, query={"api-version": self.version}
        )


@dataclass(frozen=True, slots=True)
class ArmAnswer:
    status: int = 200
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)


Handler = Callable[[CloudState, Ask], tuple[CloudState, ArmAnswer]]
ROUTES: dict[tuple[str, str, str], Handler] = {}


def route(method: str, kind: str, tail: str = "") -> Callable[[Handler], Handler]:
    """Registers a handler: for a method on a kind of resource, with the word after its name."""

    def register(handler: Handler) -> Handler:
        ROUTES[method, kind.lower(), tail.lower()] = handler
        return handler

    return register


def begin(
    cloud: CloudState, ask: Ask, verb: str, takes_s: float, about: str = "", *, error: Mapping[str, Any] | None = None
) -> tuple[CloudState, Operation]:
    """Starts a long-running operation; its chores can be added to it."""
    id = ask.uuid("operation", verb, about)
    due_at = ask.now + takes_s * cloud.weather.stretch
    operation = Operation(id, verb, about or ask.id, ask.now, due_at, error=error or {})
    return cloud.put_operation(operation), operation


def accepted(ask: Ask, operation: Operation, body: Any = None, *, status: int = 202) -> ArmAnswer:
    """Where to poll: the operation's status, and the result where there is no resource."""
    namespace = ask.target.kind.split("/")[0] or "Microsoft.Resources"
    place = f"/subscriptions/{ask.target.subscription}/providers/{namespace}/locations/twin"
    headers = {
        "Azure-AsyncOperation": ask.url(f"{place}/operations/{operation.id}"),
        "Retry-After": str(RETRY_AFTER_S),
    }
    if status == 202:
        headers["Location"] = ask.url(f"{place}/operationResults/{operation.id}", monitor="true")
    return ArmAnswer(status, body, headers)


def page(ask: Ask, items: Sequence[Any]) -> ArmAnswer:
    """A list, not filtered yet, in pages as long as Azure's."""
    size = int(ask.query.get("$top", _PAGE))
    start = int(ask.query.get("$skiptoken", 0))
    body: dict[str, Any] = {"value": list(items[start : start + size])}
    if start + size < len(items) and "$top" not in ask.query:
        kept = {key: value for key, value in ask.query.items() if key not in ("api-version", "$skiptoken")}
        body["nextLink"] = ask.url(ask.path, **kept, **{"$skiptoken": str(start + size)})
    return ArmAnswer(200, body)


def shown(resources: Sequence[Resource]) -> list[dict[str, Any]]:
    return [one.answer() for one in resources]


def tagged(resources: Sequence[Resource], text: str) -> list[Resource]:
    """Those that match the `$filter` of a list of resources or groups."""
    if not text:
        return list(resources)
    test = odata.parse(text)
    return [one for one in resources if any(test(item) for item in _items(one))]


def _items(resource: Resource) -> list[dict[str, Any]]:
    """What a filter can test of a resource: once for each of its tags."""
    facts = {
        "name": resource.name,
        "resourceType": resource.kind,
        "resourceGroup": resource.group,
        "location": resource.region,
    }
    tags = resource.body.get("tags") or {}
    return [{**facts, "tagName": name, "tagValue": value} for name, value in tags.items()] or [facts]


def needed(body: Mapping[str, Any], *path: str) -> Any:
    """A required field of the body."""
    value: Any = body
    for word in path:
        value = value.get(word) if isinstance(value, Mapping) else None
    if value in (None, "", {}, []):
        raise invalid(f"Required parameter '{'.'.join(path)}' is missing (null).")
    return value


def objects(body: Mapping[str, Any], word: str) -> list[Mapping[str, Any]]:
    """A list of objects in the body; empty where it is missing."""
    value = body.get(word)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(one, Mapping) for one in value):
        raise unreadable(f"'{word}' must be a list of objects. Path '{word}'.")
    return value


NAMESPACES = (
    "Microsoft.Compute",
    "Microsoft.MachineLearningServices",
    "Microsoft.Network",
    "Microsoft.Resources",
    "Microsoft.Storage",
)


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
