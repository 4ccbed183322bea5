"""Who may do what in a workspace: roles as narrow as Azure allows. Pure."""

from __future__ import annotations

import uuid
from typing import Any

Json = dict[str, Any]

# The ids of Azure's built-in roles.
BLOB_CONTRIBUTOR = "ba92f5b4-2d11-453d-a403-e96b0029c9fe"
BLOB_READER = "2a2b9908-6ea1-4ae2-8e65-a410df84e7d1"
ACCESS_ADMINISTRATOR = "f58310d9-a9f6-439a-9e8d-f62e7b41a168"
TITLES = {
    BLOB_CONTRIBUTOR: "Storage Blob Data Contributor",
    BLOB_READER: "Storage Blob Data Reader",
    ACCESS_ADMINISTRATOR: "Role Based Access Control Administrator",
}

# A node may delete itself and nothing else: it creates and changes nothing. Each has this role over its own VM or scale
# set, or over its group where it is alone in it. The deployment that creates the node assigns it.
NODE_ACTIONS = (
    "Microsoft.Compute/virtualMachineScaleSets/delete",
    "Microsoft.Compute/virtualMachineScaleSets/read",
    "Microsoft.Compute/virtualMachines/deallocate/action",
    "Microsoft.Compute/virtualMachines/delete",
    "Microsoft.Compute/virtualMachines/read",
    "Microsoft.Resources/subscriptions/resourceGroups/delete",
    "Microsoft.Resources/subscriptions/resourceGroups/read",
)

# What a practitioner may do in their own group: VMs and their resources.
PRACTITIONER_ACTIONS = (
    "Microsoft.Authorization/*/read",
    "Microsoft.Compute/disks/*",
    "Microsoft.Compute/virtualMachineScaleSets/*",
    "Microsoft.Compute/virtualMachines/*",
    "Microsoft.ManagedIdentity/userAssignedIdentities/*",
    "Microsoft.Network/networkInterfaces/*",
    "Microsoft.Network/networkSecurityGroups/join/action",
    "Microsoft.Network/networkSecurityGroups/read",
    "Microsoft.Network/networkSecurityGroups/securityRules/*",
    "Microsoft.Network/publicIPAddresses/*",
    "Microsoft.Network/virtualNetworks/read",
    "Microsoft.Network/virtualNetworks/subnets/join/action",
    "Microsoft.Network/virtualNetworks/subnets/read",
    "Microsoft.Resources/deployments/*",
    "Microsoft.Resources/subscriptions/resourceGroups/read",
    "Microsoft.Resources/subscriptions/resourceGroups/resources/read",
    "Microsoft.Resources/tags/*",
)

# What everybody in a workspace may read in the subscription: sizes, usage, and role assignments.
MEMBER_ACTIONS = (
    "Microsoft.Authorization/roleAssignments/read",
    "Microsoft.Authorization/roleDefinitions/read",
    "Microsoft.Compute/galleries/images/versions/read",
    "Microsoft.Compute/images/read",
    "Microsoft.Compute/locations/*/read",
    "Microsoft.Compute/skus/read",
    "Microsoft.Compute/virtualMachineScaleSets/read",
    "Microsoft.Compute/virtualMachines/read",
    "Microsoft.Network/locations/*/read",
    "Microsoft.Resources/subscriptions/read",
)

# For a network that a team shares.
NETWORK_ACTIONS = (
    "Microsoft.Network/virtualNetworks/read",
    "Microsoft.Network/virtualNetworks/subnets/join/action",
    "Microsoft.Network/virtualNetworks/subnets/read",
)


def role_id(subscription: str, role: str) -> str:
    return f"/subscriptions/{subscription}/providers/Microsoft.Authorization/roleDefinitions/{role}"


def own_role(subscription: str, workspace: str, word: str) -> str:
    """The id of a role of ours: always the same, so that it is created once."""
    return _uuid("role", subscription, workspace, word)


def assignment_name(scope: str, role: str, principal: str) -> str:
    return _uuid("assignment", scope, role, principal)


def definition(subscription: str, title: str, meaning: str, actions: tuple[str, ...]) -> Json:
    return {
        "properties": {
            "roleName": title,
            "description": meaning,
            "type": "CustomRole",
            "permissions": [{"actions": list(actions), "notActions": [], "dataActions": [], "notDataActions": []}],
            "assignableScopes": [f"/subscriptions/{subscription}"],
        }
    }


def only_for_nodes(node_role: str) -> str:
    """The condition under which practitioners may assign or revoke a role: only the node's role, and only to service
    principals. It cannot name the VM, which does not exist yet; but it applies in their own group only."""
    kind = "Microsoft.Authorization/roleAssignments"

    def only(source: str) -> str:
        return (
            f"@{source}[{kind}:RoleDefinitionId] ForAnyOfAnyValues:GuidEquals {{{node_role}}}"
            f" AND @{source}[{kind}:PrincipalType] ForAnyOfAnyValues:StringEqualsIgnoreCase {{'ServicePrincipal'}}"
        )

    return (
        f"((!(ActionMatches{{'{kind}/write'}})) OR ({only('Request')}))"
        f" AND ((!(ActionMatches{{'{kind}/delete'}})) OR ({only('Resource')}))"
    )


def _uuid(*words: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_URL, "stoker:" + "/".join(words).lower()))
