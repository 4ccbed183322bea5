"""A workspace in Azure: what exists of it, what creates the rest, what practitioners need, and its removal."""

from __future__ import annotations

import json
import ssl
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from functools import cached_property, partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from stoker.errors import Conflict
from stoker.model.workspace.groundwork import GivenOptions, GroundworkPiece, PieceState
from stoker.model.workspace.handover import Handover, TeamStore
from stoker.providers.azure import naming
from stoker.providers.azure.account.account import PUBLIC_ARM, Account
from stoker.providers.azure.setup import options, resources, site
from stoker.providers.azure.setup.cloud import SetupCloud
from stoker.providers.azure.setup.resources import (
    BUDGET_API,
    GROUPS_API,
    LOCKS_API,
    ROLES_API,
    WantedResource,
    agrees,
    merged,
)
from stoker.providers.azure.setup.site import (
    NETWORK,
    REGIONS,
    SETUP,
    TITLES,
    Json,
    WorkspaceSite,
    default_account,
    default_group,
)
from stoker.providers.azure.template import COMPUTE, PROXIMITY

Step = tuple[GroundworkPiece, Callable[[], None]]

_REGION = "eastus"  # the default
_NETWORKS = "Microsoft.Network/virtualNetworks"
_ACCOUNTS = "Microsoft.Storage/storageAccounts"


class Workspace:
    def __init__(self, asked: GivenOptions, cloud: SetupCloud) -> None:
        self._asked = asked
        self._cloud = cloud

    def steps(self, *, costs: bool = False) -> Iterator[Step]:
        """Each piece in its current state, with what creates it. A piece is checked after those before it were handled,
        because it may depend on them. The price list is read for `costs` only."""
        site = self.site
        missing = self._cloud.unregistered(resources.NAMESPACES)
        yield _services(missing), partial(self._register, missing)
        for one in resources.wanted(site, datetime.now(UTC).date()):
            piece, make = self._step(one, self._cloud.get(one.id, one.api))
            yield replace(piece, cost=self._rate()) if costs and one.by_use else piece, make
        own = resources.administrator(site, self._cloud.me())
        yield self._step(own, self._cloud.assigned(own))
        for person in site.practitioners:
            for one in resources.admission(site, person):
                assigned = one.kind == "role assignment"
                yield self._step(one, self._cloud.assigned(one) if assigned else self._cloud.get(one.id, one.api))

    def handover(self) -> Handover:
        """Everything exists. Names, ids and addresses only: each practitioner uses their own login."""
        site, public = self.site, self._cloud.account.arm == PUBLIC_ARM
        own = {} if public else _addresses(self._cloud.account)
        account: dict[str, Any] = {
            "subscription": site.subscription,
            "tenant": self._tenant,
            "workspace": site.workspace,
            "regions": list(site.regions),
            "role": site.node_role,
            "practitioner": site.practitioner_role,
            **({"subnet": site.subnet_id} if site.network else {}),
            **own,
        }
        values = {} if public else {"authority": own["login"]}
        store = TeamStore(site.workspace, self.store_url(), "login", values)
        return Handover(
            site.workspace,
            {"azure": account},
            store,
            login=_login(self._tenant, public),
            admission=f"stoker admin setup azure --workspace {site.workspace} --practitioner YOUR-OBJECT-ID",
            certificate=_certificate(self._cloud.account.ca_file),
        )

    def store_url(self) -> str:
        found = self._cloud.get(self.site.account_id, resources.STORAGE_API) or {}
        endpoint = found.get("properties", {}).get("primaryEndpoints", {}).get("blob", "")
        return f"{endpoint.rstrip('/')}/{self.site.container}" if endpoint else ""

    @cached_property
    def site(self) -> WorkspaceSite:
        """The request, completed by what an earlier set-up has created: a second one needs only the name."""
        asked = self._asked
        workspace, subscription = options.workspace(asked), options.subscription(asked)
        budget, mails = options.budget(asked)
        people, regions = options.practitioners(asked), options.regions(asked)
        group, account, network = options.group(asked), options.account(asked), ""
        options.network(asked, regions)
        assert self._tenant  # reads the subscription: from here on the cloud answers
        there = self._group_there(workspace, group)
        if there:
            group, settled, home = there
            regions = _home_first(regions or settled, home)
            account, network = self._settled(group, account)
        regions = regions or (_REGION,)
        network = options.network(asked, regions) or options.one_region(network, regions)
        return WorkspaceSite(
            subscription,
            workspace,
            regions,
            group or default_group(workspace),
            account or default_account(subscription, workspace),
            budget=budget,
            mails=mails,
            network=network,
            practitioners=people,
        )

    @cached_property
    def _tenant(self) -> str:
        return str(self._cloud.subscription().get("tenantId", ""))

    def _group_there(self, workspace: str, wanted: str) -> tuple[str, tuple[str, ...], str] | None:
        """The workspace's group, found by its tag: its name, the regions in its tag, and its own region."""
        found = self._cloud.set_up_groups(SETUP, workspace)
        if found:
            name, tags, home = found[0]
            if wanted and wanted.lower() != name.lower():
                raise Conflict(f"the workspace {workspace} already uses the resource group {name}", hint="omit --group")
            return name, tuple(filter(None, tags.get(REGIONS, "").split(","))), home
        name = wanted or default_group(workspace)
        if self._cloud.get(naming.group_id(self._cloud.account.subscription, name), resources.GROUPS_API):
            raise Conflict(
                f"the resource group {name} exists, but was not created by a set-up of {workspace}",
                hint="choose another name with --group, or another --workspace",
            )
        return None

    def _settled(self, group: str, account: str) -> tuple[str, str]:
        """The storage account and the network in the group."""
        accounts = [name for kind, name, tags in self._cloud.inside(group) if kind == _ACCOUNTS and SETUP in tags]
        if accounts and account and account != accounts[0]:
            raise Conflict(f"the workspace already uses the storage account {accounts[0]}", hint="omit --account")
        place = naming.group_id(self._cloud.account.subscription, group)
        found = self._cloud.get(f"{place}/providers/{_NETWORKS}/{NETWORK}", resources.NETWORK_API)
        space = found["properties"]["addressSpace"]["addressPrefixes"] if found else ()
        return (accounts[0] if accounts else account), next(iter(space), "")

    def _register(self, namespaces: list[str]) -> None:
        for one in namespaces:
            self._cloud.register(one)

    def _step(self, one: WantedResource, found: Json | None) -> Step:
        piece = GroundworkPiece(one.kind, one.title, one.why, PieceState.MISSING)
        if found is None:
            return piece, partial(self._cloud.put, one)
        mended = merged(one, found)
        state = PieceState.THERE if agrees(mended.body, found) else PieceState.CHANGED
        return replace(piece, state=state), partial(self._cloud.put, mended)

    def _rate(self) -> str:
        account = self._cloud.account
        rate = usd_per_gb_month(account.prices, account.ca_file, self.site.regions[0])
        return f"${rate.normalize():f} per GB" if rate is not None else "billed by use; price unknown"


def _services(missing: list[str]) -> GroundworkPiece:
    state = PieceState.MISSING if missing else PieceState.THERE
    named = ", ".join(one.removeprefix("Microsoft.") for one in missing or resources.NAMESPACES)
    return GroundworkPiece("services", named, "registered once per subscription", state)


def _home_first(regions: tuple[str, ...], home: str) -> tuple[str, ...]:
    """The group's own region stays first: the store is there."""
    return (home, *(one for one in regions if one != home)) if home in regions or not regions else regions


def _addresses(account: Account) -> dict[str, str]:
    """Endpoints of an Azure that is not the public one."""
    return {"arm": account.arm, "login": account.login, "prices": account.prices}


def _certificate(ca_file: str) -> str:
    """The certificate itself: a path would mean nothing on another computer."""
    return Path(ca_file).read_text(encoding="ascii") if ca_file else ""


def _login(tenant: str, public: bool) -> tuple[str, ...]:
    if public:
        return (f"az login --tenant {tenant}",)
    return (f"export AZURE_TENANT_ID={tenant} AZURE_CLIENT_ID=… AZURE_CLIENT_SECRET=…",)


# The price of a gigabyte in the store, from Azure's public price list.

_TIMEOUT_S = 10.0
_METER, _PRODUCT = "Hot LRS Data Stored", "General Block Blob v2"


def usd_per_gb_month(prices: str, ca_file: str, region: str) -> Decimal | None:
    """Of the first gigabytes: above 51,200 it is less. None where the list is unavailable, or has no such price."""
    words = {"serviceName": "Storage", "armRegionName": region, "meterName": _METER, "productName": _PRODUCT}
    asked = " and ".join(f"{word} eq '{value}'" for word, value in words.items())
    context = ssl.create_default_context(cafile=ca_file or None)
    try:
        url = f"{prices}?{urlencode({'$filter': asked})}"
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S, context=context) as answer:
            items = json.load(answer)["Items"]
        first = [one for one in items if one["unitOfMeasure"] == "1 GB/Month" and not one["tierMinimumUnits"]]
        return Decimal(str(first[0]["retailPrice"])) if first else None
    except (OSError, ValueError, KeyError, TypeError, InvalidOperation):
        return None  # a set-up does not wait for a price list


_LOOKS, _PAUSE_S = 5, 2.0  # Azure's lists lag behind changes
_WORDS = {
    _ACCOUNTS: "storage account",
    "Microsoft.Network/virtualNetworks": "network",
    "Microsoft.Network/networkSecurityGroups": "firewall",
    PROXIMITY: "placement group",
}

Removed = tuple[GroundworkPiece, Callable[[], None]]  # what exists, and what removes it


class GroundworkRemoval:
    def __init__(self, asked: GivenOptions, cloud: SetupCloud) -> None:
        self._asked = asked
        self._cloud = cloud

    def survey(self) -> list[GroundworkPiece]:
        return [piece for piece, _ in self._found(sizes=True)]

    def carry_out(self, tell: Callable[[GroundworkPiece], None]) -> list[GroundworkPiece]:
        """What is deleted with its group is reported when the group is gone."""
        for piece, remove in list(self._found()):
            remove()
            tell(piece)
        for _ in range(_LOOKS):
            left = [piece for piece, _ in self._found()]
            if not left:
                break
            time.sleep(_PAUSE_S)
        return left

    def _found(self, *, sizes: bool = False) -> Iterator[Removed]:
        """In the order of removal: users of a resource before the resource, roles when nobody has them."""
        workspace, cloud = options.workspace(self._asked), self._cloud
        assert self._subscription  # fails early, before any other request
        for name in cloud.node_groups(workspace):
            yield _piece("machines of a run", name, PieceState.LIVE), self._deletes(self._group_id(name), GROUPS_API)
        people = [name for name, _, _ in cloud.set_up_groups(site.PEOPLE, workspace)]
        for group in people:
            for id, name in cloud.node_machines(group, workspace):
                yield _piece("machines of a run", name, PieceState.LIVE), self._deletes(id, COMPUTE)
        roles = self._site.titles
        team = [name for name, _, _ in cloud.set_up_groups(site.SETUP, workspace)]
        for id, role, principal in cloud.assignments_of(list(roles)):
            if any(f"/resourcegroups/{name}/".lower() in id.lower() for name in team):
                continue  # deleted with its group, whose lock protects it until then
            title = {**TITLES, **roles}.get(role, role)
            yield _piece("role assignment", f"{title} for {principal}"), self._deletes(id, ROLES_API)
        if cloud.get(self._site.budget_id, BUDGET_API):
            yield _piece("budget", f"stoker-{workspace}"), self._deletes(self._site.budget_id, BUDGET_API)
        for group in people:
            yield from self._people(group, workspace)
        for name in team:
            yield from self._group(name, workspace, sizes)
        for role in roles:
            id = self._site.role_id(role)
            if found := cloud.get(id, ROLES_API):
                yield _piece("role", str(found["properties"]["roleName"])), self._deletes(id, ROLES_API)

    def _group(self, group: str, workspace: str, sizes: bool) -> Iterator[Removed]:
        """Its lock goes first, then the group with everything in it. Parts are listed, so that nothing is a
        surprise."""
        lock = replace(self._site, group=group).lock_id
        if self._cloud.get(lock, LOCKS_API):
            yield _piece("lock", lock.rsplit("/", 1)[-1]), self._deletes(lock, LOCKS_API)
        yield _piece("resource group", group), self._deletes(self._group_id(group), GROUPS_API)
        for kind, name, tags in self._cloud.inside(group):
            ours = tags.get(site.SETUP) == workspace
            piece = _piece(_WORDS.get(kind, kind), name, PieceState.THERE if ours else PieceState.FOREIGN)
            yield self._weighed(piece, group) if sizes and kind == _ACCOUNTS else piece, _nothing

    def _people(self, group: str, workspace: str) -> Iterator[Removed]:
        """A practitioner's VMs and the parts of the set-up go with the group; other resources belong to somebody."""
        yield _piece("resource group", group), self._deletes(self._group_id(group), GROUPS_API)
        for kind, name, tags in self._cloud.inside(group):
            if tags.get(site.PEOPLE) == workspace:
                yield _piece(_WORDS.get(kind, kind), name), _nothing
            elif not naming.marks(tags, workspace) and not name.startswith("stoker-"):
                yield _piece(_WORDS.get(kind, kind), name, PieceState.FOREIGN), _nothing

    def _weighed(self, piece: GroundworkPiece, group: str) -> GroundworkPiece:
        """With the size of its data, or the note that this login may not list it."""
        size = self._size(f"{self._group_id(group)}/providers/{_ACCOUNTS}/{piece.name}")
        return replace(piece, size_bytes=size, cost="" if size is not None else "unknown")

    def _size(self, id: str) -> int | None:
        found = self._cloud.get(id, resources.STORAGE_API) or {}
        endpoint = found.get("properties", {}).get("primaryEndpoints", {}).get("blob", "").rstrip("/")
        own = self._cloud.account
        values: Mapping[str, str] = {} if own.arm == PUBLIC_ARM else {"authority": own.login, "ca_file": own.ca_file}
        return self._cloud.stored_bytes(f"{endpoint}/{site.CONTAINER}", values) if endpoint else None

    def _deletes(self, id: str, api: str) -> Callable[[], None]:
        return lambda: self._cloud.delete(id, api)

    def _group_id(self, name: str) -> str:
        return f"{self._site.scope}/resourceGroups/{name}"

    @cached_property
    def _subscription(self) -> str:
        return str(self._cloud.subscription().get("subscriptionId", "seen"))

    @cached_property
    def _site(self) -> WorkspaceSite:
        """Names derived from the workspace's."""
        workspace, subscription = options.workspace(self._asked), options.subscription(self._asked)
        return WorkspaceSite(subscription, workspace, ("",), "", "")


def _nothing() -> None:
    """It is deleted with its group."""


def _piece(kind: str, name: str, state: PieceState = PieceState.THERE) -> GroundworkPiece:
    return GroundworkPiece(kind, name, "", state, Decimal(0))
