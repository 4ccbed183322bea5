"""What all resources have in common: being read, listed, tagged and deleted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from stoker.twin import ids
from stoker.twin.arm import groups
from stoker.twin.arm.requests import bodies
from stoker.twin.arm.requests.ask import Answer, Ask, accepted, begin, page, route, shown, tagged
from stoker.twin.refusal import Refused, invalid, not_found, unreadable
from stoker.twin.state import Cloud, Resource

_DELETE_S = 0.2
Check = Callable[[Cloud, Resource], None]


def readable(kind: str) -> None:
    """Registers reading one, and listing those of a group or of the subscription."""
    namespace, name = kind.split("/")

    def get(cloud: Cloud, ask: Ask) -> tuple[Cloud, Answer]:
        return cloud, Answer(200, require(cloud, ask).answer())

    def list_all(cloud: Cloud, ask: Ask) -> tuple[Cloud, Answer]:
        if ask.target.group:
            groups.require(cloud, ask)
        return cloud, page(ask, shown(cloud.all(kind, ask.target.group)))

    route("GET", kind)(get)
    route("GET", namespace, name)(list_all)


def taggable(kind: str) -> None:
    """Registers the PATCH that changes tags and nothing else."""

    def patch(cloud: Cloud, ask: Ask) -> tuple[Cloud, Answer]:
        resource = require(cloud, ask)
        resource = replace(resource, body={**resource.body, "tags": dict(ask.body.get("tags") or {})})
        return cloud.put(resource), Answer(200, resource.answer())

    route("PATCH", kind)(patch)


def anything_goes(_cloud: Cloud, _resource: Resource) -> None:
    """What nobody else can depend on may be deleted at any time."""


def deletable(kind: str, check: Check = anything_goes, verb: str = "delete") -> None:
    """Registers deletion, which `check` may refuse."""

    def delete(cloud: Cloud, ask: Ask) -> tuple[Cloud, Answer]:
        resource = cloud.find(ask.id)
        if resource is None:
            return cloud, Answer(204)
        check(cloud, resource)
        cloud, operation = begin(cloud, ask, verb, _DELETE_S)
        return cloud, accepted(ask, operation)

    route("DELETE", kind)(delete)


def require(cloud: Cloud, ask: Ask) -> Resource:
    if ask.target.group:
        groups.require(cloud, ask)
    resource = cloud.find(ask.id)
    if resource is None:
        raise not_found(ask.target.kind, "/".join(ask.target.names), ask.target.group)
    return resource


def store(cloud: Cloud, ask: Ask, properties: Mapping[str, Any], **more: Any) -> tuple[Cloud, Answer]:
    """Keeps what a PUT asked for. The same again gives the same."""
    groups.require(cloud, ask)
    groups.refuse_deleting(cloud, ask)
    region = groups.region_of(cloud, ask)
    there = cloud.find(ask.id)
    if there and there.region != region:
        raise Refused(
            409,
            "InvalidResourceLocation",
            f"The resource '{there.name}' already exists in location '{there.region}' in resource group "
            f"'{there.group}'. A resource with the same name cannot be created in location '{region}'.",
        )
    body = {**groups.top(ask, region), **more, "properties": {**properties, "provisioningState": "Succeeded"}}
    resource = Resource(there.id if there else ask.id, body, there.created_at if there else ask.now)
    return cloud.put(resource), Answer(200 if there else 201, resource.answer())


_UNLISTED = (
    "Microsoft.Authorization/",
    "Microsoft.Consumption/",
    "Microsoft.Resources/",
    "Microsoft.Storage/storageAccounts/blobServices/",
)


def _no_parts(resource: Resource) -> bool:
    """Lists of resources show neither groups nor what is attached to others, but parts such as extensions they do."""
    return resource.kind != ids.GROUPS and not resource.kind.startswith(_UNLISTED)


@route("GET", ids.SUBSCRIPTIONS, "resources")
def list_all(cloud: Cloud, ask: Ask) -> tuple[Cloud, Answer]:
    return cloud, _listed(cloud, ask, [one for one in cloud.resources.values() if _no_parts(one)])


@route("GET", ids.GROUPS, "resources")
def list_group(cloud: Cloud, ask: Ask) -> tuple[Cloud, Answer]:
    group = groups.require(cloud, ask)
    return cloud, _listed(cloud, ask, [one for one in cloud.below(group.id) if _no_parts(one)])


def _listed(_cloud: Cloud, ask: Ask, found: list[Resource]) -> Answer:
    expand = {word.strip() for word in ask.query.get("$expand", "").split(",")}
    return page(ask, [_short(one, ask, expand) for one in tagged(found, ask.query.get("$filter", ""))])


def _short(resource: Resource, ask: Ask, expand: set[str]) -> dict[str, Any]:
    """Lists across kinds leave the properties out."""
    answer = {key: value for key, value in resource.answer().items() if key != "properties"}
    if "createdTime" in expand:
        answer["createdTime"] = ask.stamp(resource.created_at)
    if "provisioningState" in expand:
        answer["provisioningState"] = resource.properties.get("provisioningState", "Succeeded")
    return answer


_TAGS = "Microsoft.Resources/tags"


@route("GET", _TAGS)
def get_tags(cloud: Cloud, ask: Ask) -> tuple[Cloud, Answer]:
    return cloud, _tags_of(ask, _scope(cloud, ask))


@route("PUT", _TAGS)
def put_tags(cloud: Cloud, ask: Ask) -> tuple[Cloud, Answer]:
    return _retag(cloud, ask, _asked_tags(ask))


@route("PATCH", _TAGS)
def patch_tags(cloud: Cloud, ask: Ask) -> tuple[Cloud, Answer]:
    """Lets a client change one tag without knowing the others."""
    given = _asked_tags(ask)
    there = dict(_scope(cloud, ask).body.get("tags") or {})
    match str(ask.body.get("operation", "")).lower():
        case "merge":
            return _retag(cloud, ask, {**there, **given})
        case "replace":
            return _retag(cloud, ask, given)
        case "delete":
            return _retag(cloud, ask, {key: value for key, value in there.items() if key not in given})
    raise invalid(f"The tags operation '{ask.body.get('operation')}' is invalid.", "InvalidTagsPatchOperation")


def _asked_tags(ask: Ask) -> dict[str, str]:
    given = (ask.body.get("properties") or {}).get("tags") or {}
    if not isinstance(given, Mapping):
        raise unreadable("'tags' must be an object. Path 'properties.tags'.")
    return dict(given)


def _retag(cloud: Cloud, ask: Ask, tags: dict[str, str]) -> tuple[Cloud, Answer]:
    bodies.check_tags(tags)
    resource = _scope(cloud, ask)
    resource = replace(resource, body={**resource.body, "tags": tags})
    return cloud.put(resource), _tags_of(ask, resource)


def _scope(cloud: Cloud, ask: Ask) -> Resource:
    resource = cloud.find(ask.target.scope)
    if resource is None:
        raise not_found(ids.read(ask.target.scope).kind, ids.read(ask.target.scope).name, ask.target.group)
    return resource


def _tags_of(ask: Ask, resource: Resource) -> Answer:
    properties = {"tags": dict(resource.body.get("tags") or {})}
    return Answer(200, {"id": ask.id, "name": "default", "type": _TAGS, "properties": properties})
