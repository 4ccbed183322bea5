"""Who may do what in a workspace: roles as narrow as Azure can say them. Pure."""

from __future__ import annotations

import uuid
from typing import Any

Json = dict[str, Any]

# Azure's own ids of its built-in roles.
BLOB_CONTRIBUTOR = "ba92f5b4-2d11-453d-a403-e96b0029c9fe"
BLOB_READER = "2a2b9908-6ea1-4ae2-8e65-a410df84e7d1"
IDENTITY_OPERATOR = "f1a07417-d97a-45cb-824c-7a7467783830"
ACCESS_ADMINISTRATOR = "f58310d9-a9f6-439a-9e8d-f62e7b41a168"
TITLES = {
    BLOB_CONTRIBUTOR: "Storage Blob Data Contributor",
    BLOB_READER: "Storage Blob Data Reader",
    IDENTITY_OPERATOR: "Managed Identity Operator",
    ACCESS_ADMINISTRATOR: "Role Based Access Control Administrator",
}

# A node may end itself and nothing else. It has this role in its own group only, where the deployment that makes the
# node assigns it: Azure cannot say "groups whose name begins with stoker".
NODE_ACTIONS = (
    "Microsoft.Compute/virtualMachines/deallocate/action",
    "Microsoft.Compute/virtualMachines/read",
    "Microsoft.Resources/subscriptions/resourceGroups/delete",
    "Microsoft.Resources/subscriptions/resourceGroups/read",
)

# What the provider asks for: groups, one deployment in each, and the parts of a machine.
PRACTITIONER_ACTIONS = (
    "Microsoft.Authorization/*/read",
    "Microsoft.Compute/disks/*",
    "Microsoft.Compute/galleries/images/versions/read",
    "Microsoft.Compute/images/read",
    "Microsoft.Compute/locations/*",
    "Microsoft.Compute/skus/read",
    "Microsoft.Compute/virtualMachines/*",
    "Microsoft.Network/locations/*",
    "Microsoft.Network/networkInterfaces/*",
    "Microsoft.Network/networkSecurityGroups/*",
    "Microsoft.Network/publicIPAddresses/*",
    "Microsoft.Network/virtualNetworks/*",
    "Microsoft.Resources/deployments/*",
    "Microsoft.Resources/subscriptions/read",
    "Microsoft.Resources/subscriptions/resourceGroups/*",
    "Microsoft.Resources/subscriptions/resources/read",
    "Microsoft.Resources/tags/*",
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


def only_for_nodes(node_role: str, node_principal: str) -> str:
    """The condition under which practitioners may give a role away: the node's alone, to the node's identity alone."""
    kind = "Microsoft.Authorization/roleAssignments"
    tests = (
        f"@Request[{kind}:RoleDefinitionId] ForAnyOfAnyValues:GuidEquals {{{node_role}}}"
        f" AND @Request[{kind}:PrincipalId] ForAnyOfAnyValues:GuidEquals {{{node_principal}}}"
    )
    return f"((!(ActionMatches{{'{kind}/write'}})) OR ({tests})) AND (!(ActionMatches{{'{kind}/delete'}}))"


def _uuid(*words: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_URL, "stoker:" + "/".join(words).lower()))
