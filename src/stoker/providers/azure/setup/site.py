"""The names and ids of the resources of a workspace in Azure. Pure."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from decimal import Decimal

from stoker.providers.azure import naming
from stoker.providers.azure.setup import roles

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
        return roles.own_role(self.subscription, self.workspace, "node")

    @property
    def practitioner_role(self) -> str:
        return roles.own_role(self.subscription, self.workspace, "practitioner")

    @property
    def member_role(self) -> str:
        return roles.own_role(self.subscription, self.workspace, "member")

    @property
    def network_role(self) -> str:
        return roles.own_role(self.subscription, self.workspace, "network")

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
        return roles.role_id(self.subscription, role)

    def inside(self, kind: str, name: str) -> str:
        return f"{self.group_id}/providers/{kind}/{name}"


def default_group(workspace: str) -> str:
    """With a character that the groups of nodes never contain."""
    return f"stoker_{workspace}"


def default_account(subscription: str, workspace: str) -> str:
    """Account names are unique across all of Azure: the suffix makes this one ours."""
    own = hashlib.sha256(f"{subscription}/{workspace}".lower().encode()).hexdigest()[:10]
    return f"stoker{workspace.replace('-', '')[:8]}{own}"
