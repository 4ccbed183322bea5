"""Every resource of a workspace in Azure as data: its properties, and what it is for. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date
from typing import Any

from stoker.providers.azure import naming
from stoker.providers.azure.setup.site import (
    ACCESS_ADMINISTRATOR,
    BLOB_CONTRIBUTOR,
    BLOB_READER,
    MEMBER_ACTIONS,
    NETWORK,
    NETWORK_ACTIONS,
    NODE_ACTIONS,
    PEOPLE,
    PRACTITIONER_ACTIONS,
    REGIONS,
    SETUP,
    SUBNET,
    TITLES,
    Json,
    WorkspaceSite,
    assignment_name,
    definition,
    only_for_nodes,
)
from stoker.providers.azure.template import COMPUTE, shared_network, shared_placement

NAMESPACES = ("Microsoft.Compute", "Microsoft.ManagedIdentity", "Microsoft.Network", "Microsoft.Storage")
GROUPS_API, STORAGE_API = "2024-03-01", "2023-05-01"
ROLES_API, BUDGET_API, NETWORK_API, LOCKS_API = "2022-04-01", "2023-11-01", "2024-05-01", "2020-05-01"
_WARN_AT = (50, 80, 100)  # percent of the budget


@dataclass(frozen=True, slots=True)
class WantedResource:
    """One resource. `first` names properties that keep their first values; `by_use` means that it is billed by use."""

    kind: str
    id: str
    api: str
    body: Json
    why: str
    name: str = ""  # empty: the last part of its id
    first: tuple[str, ...] = ()
    by_use: bool = False

    @property
    def title(self) -> str:
        return self.name or self.id.rsplit("/", 1)[-1]


def wanted(site: WorkspaceSite, today: date) -> list[WantedResource]:
    """In the order of creation. Roles come first: a login without that right is refused before anything is billed."""
    return [
        *_roles(site),
        WantedResource("resource group", site.group_id, GROUPS_API, _group(site), "contains the other resources"),
        _account(site),
        WantedResource(
            "container",
            site.container_id,
            STORAGE_API,
            {"properties": {"publicAccess": "None"}},
            "datasets and code snapshots; each run also gets a container of its own",
        ),
        *(_network(site) if site.network else ()),
        WantedResource(
            "lock",
            site.lock_id,
            LOCKS_API,
            {"properties": {"level": "CanNotDelete", "notes": "stoker admin teardown removes it"}},
            "protects the team's data from deletion by mistake",
        ),
        *([_budget(site, today)] if site.budget else ()),
    ]


def admission(site: WorkspaceSite, person: str) -> list[WantedResource]:
    """What one practitioner needs: their own group, and each right at the narrowest scope possible."""
    group, condition = site.group_of(person), only_for_nodes(site.node_role)
    body = {"location": site.regions[0], "tags": {PEOPLE: site.workspace}}
    machines, access = "creates and deletes VMs, in this group only", "lets VMs delete themselves"
    return [
        WantedResource(
            "resource group", group, GROUPS_API, body, "the VMs of one practitioner, inaccessible to others"
        ),
        *(one for region in site.regions if not site.network for one in _own_network(site, group, region)),
        *(_placement(site, group, region) for region in site.regions),
        _assignment(site, site.scope, site.member_role, person, "lists the available sizes"),
        _assignment(site, group, site.practitioner_role, person, machines),
        _assignment(site, group, ACCESS_ADMINISTRATOR, person, access, condition),
        _assignment(site, site.account_id, BLOB_CONTRIBUTOR, person, "reads and writes runs and data"),
        *([_assignment(site, site.network_id, site.network_role, person, "uses the network")] if site.network else ()),
    ]


def administrator(site: WorkspaceSite, principal: str) -> WantedResource:
    """An owner may do anything but read the store, which requires a role of its own."""
    return _assignment(site, site.account_id, BLOB_READER, principal, "shows you how much data there is")


def node_role(subscription: str, workspace: str) -> Json:
    """The definition of the role of nodes, created with a workspace or with its first node."""
    meaning = "May delete or deallocate a VM of Stoker. Each VM has it over itself only."
    title = f"Stoker node of {_of(subscription, workspace)}"
    return definition(subscription, title, meaning, NODE_ACTIONS)


def _of(subscription: str, workspace: str) -> str:
    """Role names must be unique in the tenant."""
    return f"{workspace} ({subscription[:8]})"


def _roles(site: WorkspaceSite) -> list[WantedResource]:
    node = WantedResource(
        "role",
        site.role_id(site.node_role),
        ROLES_API,
        node_role(site.subscription, site.workspace),
        "a node may delete itself, and do nothing else",
        name=f"Stoker node of {_of(site.subscription, site.workspace)}",
    )
    making = "May create and delete the VMs of runs."
    reading = "May list sizes and VMs."
    joining = "May attach VMs to the network."
    return [
        node,
        _role(site, site.practitioner_role, making, PRACTITIONER_ACTIONS, "lets people create VMs"),
        _role(site, site.member_role, reading, MEMBER_ACTIONS, "lets people list sizes and VMs"),
        *(
            [_role(site, site.network_role, joining, NETWORK_ACTIONS, "lets people use the network")]
            if site.network
            else ()
        ),
    ]


def _role(site: WorkspaceSite, role: str, meaning: str, actions: tuple[str, ...], why: str) -> WantedResource:
    title = f"{site.titles[role]} of {_of(site.subscription, site.workspace)}"
    body = definition(site.subscription, title, meaning, actions)
    return WantedResource("role", site.role_id(role), ROLES_API, body, why, name=title)


def _group(site: WorkspaceSite) -> Json:
    return {"location": site.regions[0], "tags": {SETUP: site.workspace, REGIONS: ",".join(site.regions)}}


def _account(site: WorkspaceSite) -> WantedResource:
    """No shared keys: every access is by a login with a role, which can be revoked."""
    properties = {
        "accessTier": "Hot",
        "allowBlobPublicAccess": False,
        "allowSharedKeyAccess": False,
        "minimumTlsVersion": "TLS1_2",
        "supportsHttpsTrafficOnly": True,
    }
    body = {"sku": {"name": "Standard_LRS"}, "kind": "StorageV2", "properties": properties}
    why = "runs, checkpoints, outputs and data"
    return _resource(site, "storage account", site.account_id, STORAGE_API, body, why, by_use=True)


def _network(site: WorkspaceSite) -> list[WantedResource]:
    firewall = site.inside("Microsoft.Network/networkSecurityGroups", NETWORK)
    subnet: Json = {
        "addressPrefix": site.network,
        "networkSecurityGroup": {"id": firewall},
        "defaultOutboundAccess": True,  # newer versions make subnets private by default
    }
    space = {
        "addressSpace": {"addressPrefixes": [site.network]},
        "subnets": [{"name": SUBNET, "properties": subnet}],
    }
    return [
        _resource(site, "firewall", firewall, NETWORK_API, {"properties": {}}, "blocks inbound traffic"),
        _resource(
            site,
            "network",
            site.network_id,
            NETWORK_API,
            {"properties": space},
            "shared by all nodes, instead of one network each",
        ),
    ]


def _own_network(site: WorkspaceSite, group: str, region: str) -> list[WantedResource]:
    """For the VMs of one practitioner in one region."""
    name, space = shared_network(region), "10.0.0.0/16"
    own = {"location": region, "tags": {PEOPLE: site.workspace}}
    firewall = f"{group}/providers/Microsoft.Network/networkSecurityGroups/{name}"
    subnet: Json = {
        "addressPrefix": space,
        "networkSecurityGroup": {"id": firewall},
        "defaultOutboundAccess": True,  # newer versions make subnets private by default
    }
    inside = {
        "addressSpace": {"addressPrefixes": [space]},
        "subnets": [{"name": "nodes", "properties": subnet}],
    }
    network = f"{group}/providers/Microsoft.Network/virtualNetworks/{name}"
    return [
        WantedResource("firewall", firewall, NETWORK_API, {**own, "properties": {}}, "blocks inbound traffic"),
        WantedResource(
            "network", network, NETWORK_API, {**own, "properties": inside}, "for the VMs of one practitioner"
        ),
    ]


def _placement(site: WorkspaceSite, group: str, region: str) -> WantedResource:
    own = {"location": region, "tags": {PEOPLE: site.workspace}}
    body = {**own, "properties": {"proximityPlacementGroupType": "Standard"}}
    why = "puts the VMs of one run close together"
    return WantedResource("placement group", shared_placement(group, region), COMPUTE, body, why)


def _budget(site: WorkspaceSite, today: date) -> WantedResource:
    """Of everything with the workspace's tag, in any group. It only warns: Azure stops nothing."""
    warnings = [*(("Actual", percent) for percent in _WARN_AT), ("Forecasted", 100)]
    notifications = {
        f"{kind}_{percent}_Percent": {
            "enabled": True,
            "operator": "GreaterThanOrEqualTo",
            "threshold": percent,
            "thresholdType": kind,
            "contactEmails": list(site.mails),
        }
        for kind, percent in warnings
    }
    properties: Json = {
        "category": "Cost",
        "amount": float(site.budget or 0),
        "timeGrain": "Monthly",
        "timePeriod": {
            "startDate": f"{today:%Y-%m}-01T00:00:00Z",
            "endDate": f"{today.year + 10}-{today:%m}-01T00:00:00Z",
        },
        "filter": {"tags": {"name": naming.WORKSPACE, "operator": "In", "values": [site.workspace]}},
        "notifications": notifications,
    }
    why = f"mails {', '.join(site.mails)} at {', '.join(map(str, _WARN_AT))} % of ${site.budget} a month"
    return WantedResource("budget", site.budget_id, BUDGET_API, {"properties": properties}, why, first=("timePeriod",))


def _resource(
    site: WorkspaceSite, kind: str, id: str, api: str, body: Json, why: str, *, by_use: bool = False
) -> WantedResource:
    own = {"location": site.regions[0], "tags": {SETUP: site.workspace}}
    return WantedResource(kind, id, api, {**own, **body}, why, by_use=by_use)


def _assignment(
    site: WorkspaceSite, scope: str, role: str, principal: str, why: str, condition: str = ""
) -> WantedResource:
    properties: Json = {"principalId": principal, "roleDefinitionId": site.role_id(role)}
    if condition:
        properties |= {"condition": condition, "conditionVersion": "2.0"}
    title = TITLES.get(role) or f"{site.titles[role]} of {site.workspace}"
    name = assignment_name(scope, role, principal)
    return WantedResource(
        "role assignment",
        f"{scope}/providers/Microsoft.Authorization/roleAssignments/{name}",
        ROLES_API,
        {"properties": properties},
        why,
        name=f"{title} for {principal}",
    )


# Comparing an existing resource with the wanted one. Pure.


def merged(one: WantedResource, found: Json) -> WantedResource:
    """The request for an existing resource: it keeps others' tags and what cannot be changed."""
    body = dict(one.body)
    if "location" in body:
        body["location"] = found.get("location") or body["location"]
    if "tags" in body:
        body["tags"] = {**(found.get("tags") or {}), **body["tags"]}
    if one.first:
        kept = {name: found["properties"][name] for name in one.first if name in found.get("properties", {})}
        body["properties"] = {**body["properties"], **kept}
    return replace(one, id=found.get("id") or one.id, body=body)


def agrees(wanted: Any, found: Any) -> bool:
    """Whether the existing resource matches; Azure returns more properties than it was sent, and other capitals."""
    if isinstance(wanted, Mapping):
        return isinstance(found, Mapping) and all(agrees(value, found.get(key)) for key, value in wanted.items())
    if isinstance(wanted, list | tuple):
        if not isinstance(found, list | tuple) or len(wanted) != len(found):
            return False
        if all(isinstance(one, str) for one in wanted):
            return sorted(one.lower() for one in wanted) == sorted(str(one).lower() for one in found)
        return all(agrees(one, other) for one, other in zip(wanted, found, strict=True))
    if isinstance(wanted, str):
        return isinstance(found, str) and wanted.lower() == found.lower()
    return bool(wanted == found)
