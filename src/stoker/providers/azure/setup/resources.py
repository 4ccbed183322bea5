"""Every resource of a workspace in Azure as data: what to ask for, and why. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date
from typing import Any

from stoker.providers.azure import naming
from stoker.providers.azure.deployment.template import shared_network
from stoker.providers.azure.setup import roles
from stoker.providers.azure.setup.roles import Json
from stoker.providers.azure.setup.site import NETWORK, PEOPLE, REGIONS, SETUP, SUBNET, Site

NAMESPACES = ("Microsoft.Compute", "Microsoft.ManagedIdentity", "Microsoft.Network", "Microsoft.Storage")
GROUPS_API, STORAGE_API = "2024-03-01", "2023-05-01"
ROLES_API, BUDGET_API, NETWORK_API, LOCKS_API = "2022-04-01", "2023-11-01", "2024-05-01", "2020-05-01"
_WARN_AT = (50, 80, 100)  # percent of the budget


@dataclass(frozen=True, slots=True)
class Wanted:
    """One resource. `first` names properties that stay as they were given first; `by_use` says that it costs by use."""

    kind: str
    id: str
    api: str
    body: Json
    why: str
    name: str = ""  # empty: the last word of its id
    first: tuple[str, ...] = ()
    by_use: bool = False

    @property
    def title(self) -> str:
        return self.name or self.id.rsplit("/", 1)[-1]


def wanted(site: Site, today: date) -> list[Wanted]:
    """In the order to make them. Roles come first: who may not make those is refused before anything costs."""
    return [
        *_roles(site),
        Wanted("resource group", site.group_id, GROUPS_API, _group(site), "holds the rest: one place to look at"),
        _account(site),
        Wanted(
            "container",
            site.container_id,
            STORAGE_API,
            {"properties": {"publicAccess": "None"}},
            "datasets and snapshots of code; each run gets one of its own beside it",
        ),
        *(_network(site) if site.network else ()),
        Wanted(
            "lock",
            site.lock_id,
            LOCKS_API,
            {"properties": {"level": "CanNotDelete", "notes": "stoker admin teardown removes it"}},
            "nobody deletes the team's data by mistake",
        ),
        *([_budget(site, today)] if site.budget else ()),
    ]


def admission(site: Site, person: str) -> list[Wanted]:
    """What one practitioner needs: a group that is theirs alone, and each right at the narrowest scope there is."""
    group, condition = site.group_of(person), roles.only_for_nodes(site.node_role)
    body = {"location": site.regions[0], "tags": {PEOPLE: site.workspace}}
    machines, access = "makes and removes machines, in this group alone", "lets machines remove themselves"
    return [
        Wanted("resource group", group, GROUPS_API, body, "the machines of one practitioner, out of others' reach"),
        *(one for region in site.regions if not site.network for one in _own_network(site, group, region)),
        _assignment(site, site.scope, site.member_role, person, "sees which sizes there are"),
        _assignment(site, group, site.practitioner_role, person, machines),
        _assignment(site, group, roles.ACCESS_ADMINISTRATOR, person, access, condition),
        _assignment(site, site.account_id, roles.BLOB_CONTRIBUTOR, person, "reads and writes runs and data"),
        *([_assignment(site, site.network_id, site.network_role, person, "uses the network")] if site.network else ()),
    ]


def administrator(site: Site, principal: str) -> Wanted:
    """An owner may do anything but look into the store: for that even they need a role."""
    return _assignment(site, site.account_id, roles.BLOB_READER, principal, "you see how much data there is")


def node_role(subscription: str, workspace: str) -> Json:
    """The definition of the role that nodes have, which is made with a workspace or with its first node."""
    meaning = "May remove or deallocate a machine of Stoker. Each machine has it for itself alone."
    title = f"Stoker node of {_of(subscription, workspace)}"
    return roles.definition(subscription, title, meaning, roles.NODE_ACTIONS)


def _of(subscription: str, workspace: str) -> str:
    """Names of roles are for the whole tenant."""
    return f"{workspace} ({subscription[:8]})"


def _roles(site: Site) -> list[Wanted]:
    node = Wanted(
        "role",
        site.role_id(site.node_role),
        ROLES_API,
        node_role(site.subscription, site.workspace),
        "a node may end itself, and nothing else",
        name=f"Stoker node of {_of(site.subscription, site.workspace)}",
    )
    making = "May make and remove the machines of runs."
    reading = "May read which sizes and machines there are."
    joining = "May put machines into the network."
    return [
        node,
        _role(site, site.practitioner_role, making, roles.PRACTITIONER_ACTIONS, "people may have machines"),
        _role(site, site.member_role, reading, roles.MEMBER_ACTIONS, "people may see what there is"),
        *(
            [_role(site, site.network_role, joining, roles.NETWORK_ACTIONS, "people may use the network")]
            if site.network
            else ()
        ),
    ]


def _role(site: Site, role: str, meaning: str, actions: tuple[str, ...], why: str) -> Wanted:
    title = f"{site.titles[role]} of {_of(site.subscription, site.workspace)}"
    body = roles.definition(site.subscription, title, meaning, actions)
    return Wanted("role", site.role_id(role), ROLES_API, body, why, name=title)


def _group(site: Site) -> Json:
    return {"location": site.regions[0], "tags": {SETUP: site.workspace, REGIONS: ",".join(site.regions)}}


def _account(site: Site) -> Wanted:
    """No shared keys: whoever reaches it is somebody, with a role that can be taken away."""
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


def _network(site: Site) -> list[Wanted]:
    firewall = site.inside("Microsoft.Network/networkSecurityGroups", NETWORK)
    subnet: Json = {
        "addressPrefix": site.network,
        "networkSecurityGroup": {"id": firewall},
        "defaultOutboundAccess": True,  # newer versions make subnets private by themselves
    }
    space = {
        "addressSpace": {"addressPrefixes": [site.network]},
        "subnets": [{"name": SUBNET, "properties": subnet}],
    }
    return [
        _resource(site, "firewall", firewall, NETWORK_API, {"properties": {}}, "lets nothing in from outside"),
        _resource(
            site,
            "network",
            site.network_id,
            NETWORK_API,
            {"properties": space},
            "nodes share it instead of having one each",
        ),
    ]


def _own_network(site: Site, group: str, region: str) -> list[Wanted]:
    """For the machines of one practitioner in one region."""
    name, space = shared_network(region), "10.0.0.0/16"
    own = {"location": region, "tags": {PEOPLE: site.workspace}}
    firewall = f"{group}/providers/Microsoft.Network/networkSecurityGroups/{name}"
    subnet: Json = {
        "addressPrefix": space,
        "networkSecurityGroup": {"id": firewall},
        "defaultOutboundAccess": True,  # newer versions make subnets private by themselves
    }
    inside = {
        "addressSpace": {"addressPrefixes": [space]},
        "subnets": [{"name": "nodes", "properties": subnet}],
    }
    network = f"{group}/providers/Microsoft.Network/virtualNetworks/{name}"
    return [
        Wanted("firewall", firewall, NETWORK_API, {**own, "properties": {}}, "lets nothing in from outside"),
        Wanted("network", network, NETWORK_API, {**own, "properties": inside}, "for one practitioner's machines"),
    ]


def _budget(site: Site, today: date) -> Wanted:
    """Of everything that carries the workspace's tag, in whichever group. It warns: Azure stops nothing by itself."""
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
    return Wanted("budget", site.budget_id, BUDGET_API, {"properties": properties}, why, first=("timePeriod",))


def _resource(site: Site, kind: str, id: str, api: str, body: Json, why: str, *, by_use: bool = False) -> Wanted:
    own = {"location": site.regions[0], "tags": {SETUP: site.workspace}}
    return Wanted(kind, id, api, {**own, **body}, why, by_use=by_use)


def _assignment(site: Site, scope: str, role: str, principal: str, why: str, condition: str = "") -> Wanted:
    properties: Json = {"principalId": principal, "roleDefinitionId": site.role_id(role)}
    if condition:
        properties |= {"condition": condition, "conditionVersion": "2.0"}
    title = roles.TITLES.get(role) or f"{site.titles[role]} of {site.workspace}"
    name = roles.assignment_name(scope, role, principal)
    return Wanted(
        "role assignment",
        f"{scope}/providers/Microsoft.Authorization/roleAssignments/{name}",
        ROLES_API,
        {"properties": properties},
        why,
        name=f"{title} for {principal}",
    )


# What is there of a resource beside what is wanted of it. Pure.


def merged(one: Wanted, found: Json) -> Wanted:
    """What to ask for where something is there: others' tags stay, and so does what cannot be changed."""
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
    """Whether what was found is what is wanted; Azure answers with more than it was told, and with other capitals."""
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
