"""Removes a workspace from Azure: what exists, what would be lost, and whether anything is left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from decimal import Decimal
from functools import cached_property

from stoker.model.workspace.groundwork import GivenOptions, GroundworkPiece, PieceState
from stoker.providers.azure import naming
from stoker.providers.azure.account.account import PUBLIC_ARM
from stoker.providers.azure.deployment.template import COMPUTE
from stoker.providers.azure.setup import options, resources, site
from stoker.providers.azure.setup.cloud import SetupCloud
from stoker.providers.azure.setup.resources import BUDGET_API, GROUPS_API, LOCKS_API, ROLES_API
from stoker.providers.azure.setup.roles import TITLES
from stoker.providers.azure.setup.site import WorkspaceSite

_LOOKS, _PAUSE_S = 5, 2.0  # Azure's lists lag behind changes
_ACCOUNTS = "Microsoft.Storage/storageAccounts"
_WORDS = {
    _ACCOUNTS: "storage account",
    "Microsoft.Network/virtualNetworks": "network",
    "Microsoft.Network/networkSecurityGroups": "firewall",
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
