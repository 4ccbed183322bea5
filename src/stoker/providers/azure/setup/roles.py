"""Who may do what in a workspace: roles as narrow as Azure can say them. Pure."""

from __future__ import annotations

import uuid
from typing import Any

Json = dict[str, Any]

# Azure's own ids of its built-in roles.
BLOB_CONTRIBUTOR = "ba92f5b4-2d11-453d-a403-e96b0029c9fe"
BLOB_READER = "2a2b9908-6ea1-4ae2-8e65-a410df84e7d1"
ACCESS_ADMINISTRATOR = "f58310d9-a9f6-439a-9e8d-f62e7b41a168"
TITLES = {
    BLOB_CONTRIBUTOR: "Storage Blob Data Contributor",
    BLOB_READER: "Storage Blob Data Reader",
    ACCESS_ADMINISTRATOR: "Role Based Access Control Administrator",
}

# A node may end itself and nothing else: it makes and changes nothing. Each has this role for itself alone: at its own
# machine or scale set, or at its group where nobody else is in it. The deployment that makes the node assigns it.
NODE_ACTIONS = (
    "Microsoft.Compute/virtualMachineScaleSets/delete",
    "Microsoft.Compute/virtualMachineScaleSets/read",
    "Microsoft.Compute/virtualMachines/deallocate/action",
    "Microsoft.Compute/virtualMachines/delete",
    "Microsoft.Compute/virtualMachines/read",
    "Microsoft.Resources/subscriptions/resourceGroups/delete",
    "Microsoft.Resources/subscriptions/resourceGroups/read",
)

# What a practitioner may do in the one group that is theirs: machines, and what belongs to them.
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

# What everybody in a workspace may read of the subscription: which sizes there are, what is in use, who has which role.
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

# For the network that a team shares.
NETWORK_ACTIONS = (
    "Microsoft.Network/virtualNetworks/read",
    "Microsoft.Network/virtualNetworks/subnets/join/action",
    "Microsoft.Network/virtualNetworks/subnets/read",
)


def role_id(subscription: str, role: str) -> str:
    return f"/subscriptions/{subscription}/providers/Microsoft.Authorization/roleDefinitions/{role}"


def own_role(subscription: str, workspace: str, word: str) -> str:
    """The id of a role of ours: the same whenever it is asked for, so that it is made once."""
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
    """The condition under which practitioners may give a role away or take it back: the node's role alone, and to
    machines alone. Which machine it is cannot be said before it is there; they may do it in their own group only."""
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
