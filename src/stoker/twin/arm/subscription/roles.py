"""Role assignments, role definitions and locks: what is attached to a scope."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stoker.twin import rights
from stoker.twin.arm import resources
from stoker.twin.arm.ask import ArmAnswer, Ask, needed, page, route, shown
from stoker.twin.refusal import Refused, conflict, invalid, not_found
from stoker.twin.state import CloudState, Resource
from stoker.twin.tokens import people

LOCKS = "Microsoft.Authorization/locks"
_CHANGEABLE = ("condition", "conditionVersion", "description")  # of an assignment


@route("PUT", rights.ASSIGNMENTS)
def put_assignment(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    given = ask.body.get("properties", {})
    principal, role = str(needed(given, "principalId")), str(needed(given, "roleDefinitionId"))
    if not rights.known(cloud, role):
        raise Refused(
            404, "RoleDefinitionDoesNotExist", f"The specified role definition with ID '{role}' does not exist."
        )
    _check_principal(cloud, ask, given, principal)
    for one in cloud.all(rights.ASSIGNMENTS):
        same = (one.target.scope.lower(), one.properties["principalId"]) == (ask.target.scope.lower(), principal)
        if same and one.properties["roleDefinitionId"].rsplit("/", 1)[-1] == role.rsplit("/", 1)[-1]:
            if one.id.lower() == ask.id.lower():
                changed = one.having(**{word: given[word] for word in _CHANGEABLE if word in given})
                return cloud.put(changed), ArmAnswer(200, changed.answer())
            raise conflict("The role assignment already exists.", "RoleAssignmentExists")
    if cloud.find(ask.id):
        raise conflict(
            "Tenant ID, application ID, principal ID, and scope are not allowed to be updated.",
            "RoleAssignmentUpdateNotPermitted",
        )
    properties = {
        "principalType": rights.principal_type(cloud, given),
        **given,
        "scope": ask.target.scope,
        "createdOn": ask.stamp(),
    }
    assignment = Resource(ask.id, {"properties": properties}, ask.now)
    return cloud.put(assignment), ArmAnswer(201, assignment.answer())


def _check_principal(cloud: CloudState, ask: Ask, given: Mapping[str, Any], principal: str) -> None:
    """A given principal type is trusted; without one, the directory is asked, which learns of new principals late."""
    late_s = cloud.weather.roles_spread_s
    if given.get("principalType") or any(
        one.object_id == principal and one.since + late_s <= ask.now for one in people(cloud)
    ):
        return
    raise invalid(
        f"Principal {principal} does not exist in the directory {cloud.tenant}. Check that you have the correct "
        "principal "
        "ID. If you are creating this principal and then immediately assigning a role, this error might be related "
        "to a "
        "replication delay. In this case, set the role assignment principalType property to a value, such as "
        "ServicePrincipal, User, or Group.  See https://aka.ms/docs-principaltype",
        "PrincipalNotFound",
    )


@route("PUT", rights.DEFINITIONS)
def put_definition(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    given = ask.body.get("properties", {})
    needed(given, "permissions")
    there, title = cloud.find(ask.id), given.get("roleName")
    same = [one for one in cloud.all(rights.DEFINITIONS) if title and one.properties.get("roleName") == title]
    if any(one.name.lower() != ask.target.name.lower() for one in same):
        raise conflict(f"A custom role with the name '{title}' already exists.", "RoleDefinitionWithSameNameExists")
    body = {"properties": {"type": "CustomRole", "assignableScopes": [ask.target.scope], **given}}
    definition = Resource(ask.id, body, there.created_at if there else ask.now)
    return cloud.put(definition), ArmAnswer(201, definition.answer())


@route("GET", rights.DEFINITIONS)
def get_definition(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    own = cloud.find(ask.id)
    if own is None and ask.target.name not in rights.BUILT_IN:
        raise Refused(
            404,
            "RoleDefinitionDoesNotExist",
            f"The specified role definition with ID '{ask.target.name}' does not exist.",
        )
    return cloud, ArmAnswer(200, own.answer() if own else _built_in(ask, ask.target.name))


@route("GET", "Microsoft.Authorization", "roleDefinitions")
def list_definitions(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    every = [*(_built_in(ask, name) for name in rights.BUILT_IN), *shown(cloud.all(rights.DEFINITIONS))]
    wanted = ask.query.get("$filter", "").partition("roleName eq '")[2].removesuffix("'")
    return cloud, page(ask, [one for one in every if wanted in ("", one["properties"]["roleName"])])


def _built_in(ask: Ask, name: str) -> dict[str, Any]:
    title, actions, left_out = rights.BUILT_IN[name]
    permissions = [{"actions": list(actions), "notActions": list(left_out), "dataActions": [], "notDataActions": []}]
    properties = {"roleName": title, "type": "BuiltInRole", "permissions": permissions, "assignableScopes": ["/"]}
    id = f"/subscriptions/{ask.target.subscription}/providers/{rights.DEFINITIONS}/{name}"
    return {"id": id, "name": name, "type": rights.DEFINITIONS, "properties": properties}


@route("GET", "Microsoft.Authorization", "permissions")
def permissions(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    """What the caller may do at the scope, from all of their roles."""
    every = [rights.Role(("*",))] if ask.claims["appid"] == cloud.admin else []
    found = every or rights.roles(cloud, str(ask.claims["oid"]), ask.target.scope)
    given = [
        {"actions": list(one.actions), "notActions": list(one.left_out), "dataActions": [], "notDataActions": []}
        | ({"condition": one.condition, "conditionVersion": "2.0"} if one.condition else {})
        for one in found
    ]
    return cloud, page(ask, given)


@route("PUT", LOCKS)
def put_lock(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    level = str(needed(ask.body, "properties", "level"))
    if level not in ("CanNotDelete", "ReadOnly"):
        raise invalid(f"The lock level '{level}' is invalid.", "InvalidLockLevel")
    resources.refuse_deleting(cloud, ask)
    lock = Resource(ask.id, {"properties": dict(ask.body["properties"])}, ask.now)
    return cloud.put(lock), ArmAnswer(200 if cloud.find(ask.id) else 201, lock.answer())


def lock_on(cloud: CloudState, scope: str, verb: str) -> Resource | None:
    """The lock that prevents this: on the scope, above it, or for a deletion on something in it."""
    for lock in cloud.all(LOCKS):
        place = lock.target.scope.lower()
        above = f"{scope.lower()}/".startswith(f"{place}/")
        inside = f"{place}/".startswith(f"{scope.lower()}/")
        if verb == "delete" and (above or inside):
            return lock
        if verb == "write" and above and lock.properties["level"] == "ReadOnly":
            return lock
    return None


def _refuse_assigned(cloud: CloudState, definition: Resource) -> None:
    for one in cloud.all(rights.ASSIGNMENTS):
        if str(one.properties["roleDefinitionId"]).rsplit("/", 1)[-1].lower() == definition.name.lower():
            message = "There are existing role assignments referencing role."
            raise invalid(f"{message} (code: RoleDefinitionHasAssignments)", "RoleDefinitionHasAssignments")


def _attached(kind: str) -> None:
    namespace, word = kind.split("/")

    def get(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
        there = cloud.find(ask.id)
        if there is None:
            raise not_found(kind, ask.target.name, ask.target.group)
        return cloud, ArmAnswer(200, there.answer())

    def delete(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
        there = cloud.find(ask.id)
        if there and kind == rights.DEFINITIONS:
            _refuse_assigned(cloud, there)
        return (cloud.drop(ask.id), ArmAnswer(200, there.answer())) if there else (cloud, ArmAnswer(204))

    def list_all(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
        """Those at the scope, above it and below it; `atScope()` excludes those below."""
        scope, filter = ask.target.scope.lower(), ask.query.get("$filter", "")
        person = (
            filter.partition("principalId eq '")[2].partition("'")[0]
            or filter.partition("assignedTo('")[2].partition("'")[0]
        )
        found = [
            one
            for one in cloud.all(kind)
            if f"{scope}/".startswith(f"{one.target.scope.lower()}/")
            or ("atScope()" not in filter and f"{one.target.scope.lower()}/".startswith(f"{scope}/"))
        ]
        return cloud, page(ask, shown([one for one in found if person in ("", one.properties.get("principalId"))]))

    route("DELETE", kind)(delete)
    if kind != rights.DEFINITIONS:  # which include built-in ones
        route("GET", kind)(get)
        route("GET", namespace, word)(list_all)


for _kind in (rights.ASSIGNMENTS, rights.DEFINITIONS, LOCKS):
    _attached(_kind)


# User-assigned managed identities.

IDENTITIES = "Microsoft.ManagedIdentity/userAssignedIdentities"


@route("PUT", IDENTITIES)
def put(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    there = cloud.find(ask.id)
    properties = {
        "tenantId": cloud.tenant,
        "principalId": there.properties["principalId"] if there else ask.uuid("principal"),
        "clientId": there.properties["clientId"] if there else ask.uuid("client"),
    }
    return resources.store(cloud, ask, properties)


@route("DELETE", IDENTITIES)
def delete(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    """At once, unlike most resources."""
    there = cloud.find(ask.id)
    return (cloud.drop(there.id), ArmAnswer(200)) if there else (cloud, ArmAnswer(204))


resources.readable(IDENTITIES)
resources.taggable(IDENTITIES)
