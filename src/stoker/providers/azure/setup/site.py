"""The names and ids of the resources of a workspace in Azure, and who may do what in it. Pure."""

from __future__ import annotations

import hashlib
import uuid
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from stoker.providers.azure import naming

SETUP = "stoker-setup"  # tag of everything that the set-up creates; its value is the workspace's name
REGIONS = "stoker-regions"  # tag of the group that contains the regions
CONTAINER = "stoker"
PEOPLE = "stoker-people"  # tag of a practitioner's group; its value is the workspace's name
NETWORK = "stoker-network"
SUBNET = "nodes"


@dataclass(frozen=True, slots=True)
class WorkspaceSite:
    """A workspace as requested, completed by what exists of it."""

    subscription: str
    workspace: str
    regions: tuple[str, ...]
    group: str
    account: str
    container: str = CONTAINER
    budget: Decimal | None = None  # per month; None: unchanged
    mails: tuple[str, ...] = ()
    network: str = ""  # address range of a network to create; empty: none
    practitioners: tuple[str, ...] = ()  # object ids of users or groups

    @property
    def scope(self) -> str:
        return f"/subscriptions/{self.subscription}"

    @property
    def group_id(self) -> str:
        return naming.group_id(self.subscription, self.group)

    @property
    def account_id(self) -> str:
        return self.inside("Microsoft.Storage/storageAccounts", self.account)

    @property
    def container_id(self) -> str:
        return f"{self.account_id}/blobServices/default/containers/{self.container}"

    def group_of(self, person: str) -> str:
        """The resource group of a practitioner's VMs."""
        return naming.group_id(self.subscription, f"{default_group(self.workspace)}_{person}")

    @property
    def network_id(self) -> str:
        return self.inside("Microsoft.Network/virtualNetworks", NETWORK)

    @property
    def subnet_id(self) -> str:
        return f"{self.network_id}/subnets/{SUBNET}" if self.network else ""

    @property
    def budget_id(self) -> str:
        return f"{self.scope}/providers/Microsoft.Consumption/budgets/stoker-{self.workspace}"

    @property
    def lock_id(self) -> str:
        return f"{self.group_id}/providers/Microsoft.Authorization/locks/stoker"

    @property
    def node_role(self) -> str:
        return own_role(self.subscription, self.workspace, "node")

    @property
    def practitioner_role(self) -> str:
        return own_role(self.subscription, self.workspace, "practitioner")

    @property
    def member_role(self) -> str:
        return own_role(self.subscription, self.workspace, "member")

    @property
    def network_role(self) -> str:
        return own_role(self.subscription, self.workspace, "network")

    @property
    def titles(self) -> dict[str, str]:
        """Titles of its own roles."""
        return {
            self.node_role: "Stoker node",
            self.practitioner_role: "Stoker practitioner",
            self.member_role: "Stoker member",
            self.network_role: "Stoker network",
        }

    def role_id(self, role: str) -> str:
        return role_id(self.subscription, role)

    def inside(self, kind: str, name: str) -> str:
        return f"{self.group_id}/providers/{kind}/{name}"


def default_group(workspace: str) -> str:
    """With a character that the groups of nodes never contain."""
    return f"stoker_{workspace}"


def default_account(subscription: str, workspace: str) -> str:
    """Account names are unique across all of Azure: the suffix makes this one ours."""
    own = hashlib.sha256(f"{subscription}/{workspace}".lower().encode()).hexdigest()[:10]
    return f"stoker{workspace.replace('-', '')[:8]}{own}"


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
    "Microsoft.Compute/proximityPlacementGroups/read",
    "Microsoft.Compute/proximityPlacementGroups/write",  # to create a VM in one
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
