"""What all resources have in common, and the groups that they are in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from stoker.twin import ids
from stoker.twin.arm import bodies
from stoker.twin.arm.ask import ArmAnswer, Ask, accepted, begin, needed, page, route, shown, tagged
from stoker.twin.market import catalog
from stoker.twin.refusal import Refused, conflict, group_not_found, invalid, not_found, unreadable
from stoker.twin.state import CloudState, Operation, Resource
from stoker.twin.time import power

_DELETE_GROUP_S = 2.0


@route("PUT", ids.GROUPS)
def put(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    there = cloud.find(ask.id)
    region = catalog.region_named(str(needed(ask.body, "location")))
    if region is None:
        raise invalid(
            f"The provided location '{ask.body['location']}' is not available for resource group.",
            "LocationNotAvailableForResourceGroup",
        )
    if there and there.region != region.name:
        raise conflict(
            f"Invalid resource group location '{region.name}'. The Resource group already exists in location "
            f"'{there.region}'.",
            "InvalidResourceGroupLocation",
        )
    refuse_deleting(cloud, ask)
    body = {"location": region.name, "tags": dict(ask.body.get("tags") or {})}
    group = Resource(there.id if there else ask.id, body, there.created_at if there else ask.now)
    if ask.body.get("managedBy"):
        group = replace(group, body={**group.body, "managedBy": ask.body["managedBy"]})
    group = group.having(provisioningState="Succeeded")
    return cloud.put(group), ArmAnswer(200 if there else 201, group.answer())


@route("PATCH", ids.GROUPS)
def patch(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    group = require_group(cloud, ask)
    if "tags" in ask.body:
        group = replace(group, body={**group.body, "tags": dict(ask.body["tags"] or {})})
    return cloud.put(group), ArmAnswer(200, group.answer())


@route("GET", ids.GROUPS)
def get(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    return cloud, ArmAnswer(200, require_group(cloud, ask).answer())


@route("HEAD", ids.GROUPS)
def exists(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    return cloud, ArmAnswer(204 if cloud.find(ask.id) else 404)


@route("GET", ids.SUBSCRIPTIONS, "resourcegroups")
def list_groups(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    return cloud, page(ask, shown(tagged(cloud.visible(ids.GROUPS), ask.query.get("$filter", ""))))


@route("DELETE", ids.GROUPS)
def delete(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    """VMs are powered off at once; everything is gone when the operation ends. Repeating it is one deletion."""
    group = require_group(cloud, ask)
    _check_forced(ask.query.get("forceDeletionTypes", ""))
    under_way = [
        one for one in cloud.operations.values() if one.open and (one.verb, one.about) == ("group.delete", group.id)
    ]
    if under_way:
        return cloud, _accepted(ask, under_way[0])
    cloud = cloud.put(group.having(provisioningState="Deleting"))
    cloud, operation = begin(cloud, ask, "group.delete", _DELETE_GROUP_S, group.id)
    for resource in cloud.below(group.id):
        if resource.kind == power.VMS:
            cloud = power.destroy(cloud, resource.id, cloud.operations[operation.id], ask.now)
    return cloud, _accepted(ask, operation)


def _check_forced(text: str) -> None:
    for kind in filter(None, text.split(",")):
        if kind.strip().lower() not in (power.VMS.lower(), power.SETS.lower()):
            raise invalid(f"The resource type '{kind}' cannot be deleted by force.", "InvalidForceDeletionTypes")


def _accepted(ask: Ask, operation: Operation) -> ArmAnswer:
    """Groups have no operation status: only the URL of the result."""
    answer = accepted(ask, operation)
    headers = {name: value for name, value in answer.headers.items() if name != "Azure-AsyncOperation"}
    return replace(answer, headers=headers)


def require_group(cloud: CloudState, ask: Ask) -> Resource:
    group = cloud.find(ids.group_id(ask.target.subscription, ask.target.group))
    if group is None:
        raise group_not_found(ask.target.group)
    return group


def refuse_deleting(cloud: CloudState, ask: Ask) -> None:
    """Nothing can be created in a group that is being deleted."""
    group = cloud.find(ids.group_id(ask.target.subscription, ask.target.group))
    if group and group.properties.get("provisioningState") == "Deleting":
        raise conflict(
            f"The resource group '{group.name}' is in deprovisioning state and cannot perform this operation.",
            "ResourceGroupBeingDeleted",
        )


def region_of(cloud: CloudState, ask: Ask) -> str:
    """The location in the body: a known region, or the group's own."""
    wanted = str(ask.body.get("location") or require_group(cloud, ask).region)
    region = catalog.region_named(wanted)
    if region is None:
        raise invalid(
            f"The provided location '{wanted}' is not available for resource type '{ask.target.kind}'.",
            "LocationNotAvailableForResourceType",
        )
    return region.name


def top(ask: Ask, region: str) -> dict[str, Any]:
    """What every body has besides its properties."""
    kept = {key: ask.body[key] for key in ("tags", "sku", "zones", "kind", "identity", "plan") if ask.body.get(key)}
    return {"location": region, **kept}


_DELETE_S = 0.2
Check = Callable[[CloudState, Resource], None]


def readable(kind: str) -> None:
    """Registers GET of one, and lists of a group or of the subscription."""
    namespace, name = kind.split("/")

    def get(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
        return cloud, ArmAnswer(200, require(cloud, ask).answer())

    def list_all(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
        if ask.target.group:
            require_group(cloud, ask)
        return cloud, page(ask, shown(cloud.visible(kind, ask.target.group)))

    route("GET", kind)(get)
    route("GET", namespace, name)(list_all)


def taggable(kind: str) -> None:
    """Registers the PATCH that changes tags and nothing else."""

    def patch(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
        resource = require(cloud, ask)
        resource = replace(resource, body={**resource.body, "tags": dict(ask.body.get("tags") or {})})
        return cloud.put(resource), ArmAnswer(200, resource.answer())

    route("PATCH", kind)(patch)


def anything_goes(_cloud: CloudState, _resource: Resource) -> None:
    """Nothing else can depend on it, so it may be deleted at any time."""


def deletable(kind: str, check: Check = anything_goes, verb: str = "delete") -> None:
    """Registers deletion, which `check` may refuse."""

    def delete(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
        resource = cloud.find(ask.id)
        if resource is None:
            return cloud, ArmAnswer(204)
        check(cloud, resource)
        cloud, operation = begin(cloud, ask, verb, _DELETE_S)
        return cloud, accepted(ask, operation)

    route("DELETE", kind)(delete)


def require(cloud: CloudState, ask: Ask) -> Resource:
    if ask.target.group:
        require_group(cloud, ask)
    resource = cloud.find(ask.id)
    if resource is None:
        raise not_found(ask.target.kind, "/".join(ask.target.names), ask.target.group)
    return resource


def store(cloud: CloudState, ask: Ask, properties: Mapping[str, Any], **more: Any) -> tuple[CloudState, ArmAnswer]:
    """Stores the requested resource. Repeating it changes nothing."""
    require_group(cloud, ask)
    refuse_deleting(cloud, ask)
    region = region_of(cloud, ask)
    there = cloud.find(ask.id)
    if there and there.region != region:
        raise Refused(
            409,
            "InvalidResourceLocation",
            f"The resource '{there.name}' already exists in location '{there.region}' in resource group "
            f"'{there.group}'. A resource with the same name cannot be created in location '{region}'.",
        )
    body = {**top(ask, region), **more, "properties": {**properties, "provisioningState": "Succeeded"}}
    resource = Resource(there.id if there else ask.id, body, there.created_at if there else ask.now)
    return cloud.put(resource), ArmAnswer(200 if there else 201, resource.answer())


_UNLISTED = (
    "Microsoft.Authorization/",
    "Microsoft.Consumption/",
    "Microsoft.Resources/",
    "Microsoft.Storage/storageAccounts/blobServices/",
)


def _no_parts(resource: Resource) -> bool:
    """Resource lists omit groups and attached resources, but include parts such as extensions."""
    return resource.kind != ids.GROUPS and not resource.kind.startswith(_UNLISTED)


@route("GET", ids.SUBSCRIPTIONS, "resources")
def list_all(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    return cloud, _listed(
        cloud, ask, [one for one in cloud.resources.values() if _no_parts(one) and cloud.is_visible(one)]
    )


@route("GET", ids.GROUPS, "resources")
def list_group(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    group = require_group(cloud, ask)
    return cloud, _listed(cloud, ask, [one for one in cloud.below(group.id) if _no_parts(one)])


def _listed(_cloud: CloudState, ask: Ask, found: list[Resource]) -> ArmAnswer:
    expand = {word.strip() for word in ask.query.get("$expand", "").split(",")}
    return page(ask, [_short(one, ask, expand) for one in tagged(found, ask.query.get("$filter", ""))])


def _short(resource: Resource, ask: Ask, expand: set[str]) -> dict[str, Any]:
    """Lists across kinds omit the properties."""
    answer = {key: value for key, value in resource.answer().items() if key != "properties"}
    if "createdTime" in expand:
        answer["createdTime"] = ask.stamp(resource.created_at)
    if "provisioningState" in expand:
        answer["provisioningState"] = resource.properties.get("provisioningState", "Succeeded")
    return answer


_TAGS = "Microsoft.Resources/tags"


@route("GET", _TAGS)
def get_tags(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    return cloud, _tags_of(ask, _scope(cloud, ask))


@route("PUT", _TAGS)
def put_tags(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    return _retag(cloud, ask, _asked_tags(ask))


@route("PATCH", _TAGS)
def patch_tags(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
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


def _retag(cloud: CloudState, ask: Ask, tags: dict[str, str]) -> tuple[CloudState, ArmAnswer]:
    bodies.check_tags(tags)
    resource = _scope(cloud, ask)
    resource = replace(resource, body={**resource.body, "tags": tags})
    return cloud.put(resource), _tags_of(ask, resource)


def _scope(cloud: CloudState, ask: Ask) -> Resource:
    resource = cloud.find(ask.target.scope)
    if resource is None:
        raise not_found(ids.read(ask.target.scope).kind, ids.read(ask.target.scope).name, ask.target.group)
    return resource


def _tags_of(ask: Ask, resource: Resource) -> ArmAnswer:
    properties = {"tags": dict(resource.body.get("tags") or {})}
    return ArmAnswer(200, {"id": ask.id, "name": "default", "type": _TAGS, "properties": properties})
