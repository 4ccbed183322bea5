"""Who may do what: roles, their actions, and the assignments that hold at a scope."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from stoker.twin.refusal import Refused
from stoker.twin.state import Cloud

ASSIGNMENTS = "Microsoft.Authorization/roleAssignments"
DEFINITIONS = "Microsoft.Authorization/roleDefinitions"

# Azure's own ids of its built-in roles.
BUILT_IN: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "8e3af657-a8ff-443c-a75c-2fe8c4bcb635": ("Owner", ("*",), ()),
    "b24988ac-6180-42a0-ab88-20f7382dd24c": (
        "Contributor",
        ("*",),
        ("Microsoft.Authorization/*/Delete", "Microsoft.Authorization/*/Write"),
    ),
    "acdd72a7-3385-48ef-bd42-f606fba81ae7": ("Reader", ("*/read",), ()),
    "18d7d88d-d35e-4fb5-a5c3-7773c20a72d9": (
        "User Access Administrator",
        ("*/read", "Microsoft.Authorization/*"),
        (),
    ),
    "9980e02c-c2be-4d73-94e8-173b1dc7cf3c": (
        "Virtual Machine Contributor",
        (
            "Microsoft.Compute/virtualMachines/*",
            "Microsoft.Compute/disks/*",
            "Microsoft.Compute/locations/*",
            "Microsoft.Network/networkInterfaces/*",
            "Microsoft.Network/*/read",
            "Microsoft.Resources/deployments/*",
            "Microsoft.Resources/subscriptions/resourceGroups/read",
        ),
        (),
    ),
    "f1a07417-d97a-45cb-824c-7a7467783830": (
        "Managed Identity Operator",
        (
            "Microsoft.ManagedIdentity/userAssignedIdentities/*/read",
            "Microsoft.ManagedIdentity/userAssignedIdentities/*",
        ),
        (),
    ),
    "ba92f5b4-2d11-453d-a403-e96b0029c9fe": ("Storage Blob Data Contributor", (), ()),
    "2a2b9908-6ea1-4ae2-8e65-a410df84e7d1": ("Storage Blob Data Reader", (), ()),
}


def check(cloud: Cloud, claims: Mapping[str, Any], action: str, scope: str) -> None:
    """Refused where no role of the caller allows this action at this scope."""
    if claims["appid"] == cloud.admin or any(_allows(role, action) for role in roles(cloud, claims["oid"], scope)):
        return
    raise Refused(
        403,
        "AuthorizationFailed",
        f"The client '{claims['appid']}' with object id '{claims['oid']}' does not have authorization to perform "
        f"action '{action}' over scope '{scope}' or the scope is invalid. If access was recently granted, "
        "please refresh your credentials.",
    )


def roles(cloud: Cloud, object_id: str, scope: str) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """What the roles assigned at this scope or above it allow, and what they leave out."""
    found = []
    for assignment in cloud.all(ASSIGNMENTS):
        above = assignment.target.scope.lower()
        if assignment.properties["principalId"] != object_id or not f"{scope.lower()}/".startswith(f"{above}/"):
            continue
        found += _permissions(cloud, str(assignment.properties["roleDefinitionId"]))
    return found


def _permissions(cloud: Cloud, definition: str) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    built_in = BUILT_IN.get(definition.rsplit("/", 1)[-1])
    if built_in:
        return [(built_in[1], built_in[2])]
    name = definition.rsplit("/", 1)[-1].lower()
    own = next((one for one in cloud.all(DEFINITIONS) if one.name.lower() == name), None)
    listed = own.properties.get("permissions", ()) if own else ()
    return [(tuple(one.get("actions", ())), tuple(one.get("notActions", ()))) for one in listed]


def _allows(role: tuple[tuple[str, ...], tuple[str, ...]], action: str) -> bool:
    given, taken = role
    return _fits(action, given) and not _fits(action, taken)


def _fits(action: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(action.lower(), pattern.lower()) for pattern in patterns)


def known(cloud: Cloud, definition: str) -> bool:
    name = definition.rsplit("/", 1)[-1].lower()
    return name in BUILT_IN or any(one.name.lower() == name for one in cloud.all(DEFINITIONS))
