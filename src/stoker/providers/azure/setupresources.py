"""Every resource of a workspace in Azure as data: what to ask for, and why. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date

from stoker.providers.azure import naming, setuproles
from stoker.providers.azure.setuproles import Json
from stoker.providers.azure.setupsite import NETWORK, REGIONS, SETUP, SUBNET, Site

NAMESPACES = ("Microsoft.Compute", "Microsoft.ManagedIdentity", "Microsoft.Network", "Microsoft.Storage")
GROUPS_API, STORAGE_API, IDENTITY_API = "2024-03-01", "2023-05-01", "2023-01-31"
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
        _resource(site, "identity", site.identity_id, IDENTITY_API, {}, "nodes remove themselves with it"),
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


def assignments(site: Site, principal: str, node_principal: str) -> list[Wanted]:
    """What one practitioner needs, each right at the narrowest scope there is."""
    condition = setuproles.only_for_nodes(site.node_role, node_principal)
    return [
        _assignment(site, site.scope, site.practitioner_role, principal, "makes and removes machines"),
        _assignment(
            site, site.scope, setuproles.ACCESS_ADMINISTRATOR, principal, "lets nodes remove themselves", condition
        ),
        _assignment(site, site.account_id, setuproles.BLOB_CONTRIBUTOR, principal, "reads and writes runs and data"),
        _assignment(site, site.identity_id, setuproles.IDENTITY_OPERATOR, principal, "gives nodes their identity"),
    ]


def administrator(site: Site, principal: str) -> Wanted:
    """An owner may do anything but look into the store: for that even they need a role."""
    return _assignment(site, site.account_id, setuproles.BLOB_READER, principal, "you see how much data there is")


def _roles(site: Site) -> list[Wanted]:
    of = f"{site.workspace} ({site.subscription[:8]})"  # names are for the whole tenant
    return [
        Wanted(
            "role",
            site.role_id(site.node_role),
            ROLES_API,
            setuproles.definition(
                site.subscription,
                f"Stoker node of {of}",
                "May remove or deallocate a node of Stoker. Assigned in the node's own group only.",
                setuproles.NODE_ACTIONS,
            ),
            "a node may end itself, and nothing else",
            name=f"Stoker node of {of}",
        ),
        Wanted(
            "role",
            site.role_id(site.practitioner_role),
            ROLES_API,
            setuproles.definition(
                site.subscription,
                f"Stoker practitioner of {of}",
                "May make and remove the machines of runs.",
                setuproles.PRACTITIONER_ACTIONS,
            ),
            "people may make and remove machines",
            name=f"Stoker practitioner of {of}",
        ),
    ]


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
    subnet: Json = {"addressPrefix": site.network, "networkSecurityGroup": {"id": firewall}}
    space = {
        "addressSpace": {"addressPrefixes": [site.network]},
        "subnets": [{"name": SUBNET, "properties": subnet}],
    }
    return [
        _resource(site, "firewall", firewall, NETWORK_API, {"properties": {}}, "lets nothing in from outside"),
        _resource(
            site,
            "network",
            site.inside("Microsoft.Network/virtualNetworks", NETWORK),
            NETWORK_API,
            {"properties": space},
            "nodes share it instead of having one each",
        ),
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
    title = setuproles.TITLES.get(role, f"Stoker practitioner of {site.workspace}")
    name = setuproles.assignment_name(scope, role, principal)
    return Wanted(
        "role assignment",
        f"{scope}/providers/Microsoft.Authorization/roleAssignments/{name}",
        ROLES_API,
        {"properties": properties},
        why,
        name=f"{title} for {principal}",
    )
