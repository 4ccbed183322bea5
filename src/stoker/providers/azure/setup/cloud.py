"""The requests of the set-up: any resource by its id, role assignments, and the contents of the store."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import Any

from stoker.errors import Conflict, NotFound, StokerError
from stoker.model.workspace.groundwork import GivenOptions
from stoker.providers.azure import naming
from stoker.providers.azure.account.account import Account
from stoker.providers.azure.account.clients import REPEATABLE, missing_error, speaking
from stoker.providers.azure.cloud import AzureCloud
from stoker.providers.azure.setup import options
from stoker.providers.azure.setup.resources import WantedResource
from stoker.providers.azure.setup.site import Json
from stoker.stores.access import Credential
from stoker.stores.opening import open_store

ASSIGNMENTS = "Microsoft.Authorization/roleAssignments"
_POLL_S = 1.0  # where Azure sends no Retry-After
_PAUSES_S = (1.0, 2.0, 4.0, 8.0, 16.0)
_SPREADING = ("RoleDefinitionDoesNotExist", "RoleDefinitionHasAssignments")
_TAKEN = ("StorageAccountAlreadyTaken", "StorageAccountInAnotherResourceGroup")


def open_cloud(asked: GivenOptions) -> SetupCloud:
    """The public Azure with the current login, or the twin as its owner."""
    subscription, twin = options.subscription(asked), asked.twin
    if twin is None:
        return SetupCloud(Account(subscription))
    url = str(twin["url"])
    account = Account(
        subscription,
        tenant=str(twin["tenant"]),
        client=str(twin["client_id"]),
        arm=url,
        login=url,
        prices=f"{url}/api/retail/prices",
        ca_file=str(twin["authority"]),
    )
    return SetupCloud(account, str(twin["client_secret"]))


class SetupCloud(AzureCloud):
    """`secret` belongs to the client that the account names; without one, the current login is used."""

    def __init__(self, account: Account, secret: str = "") -> None:
        super().__init__(account)
        self.account = account
        self.secret = secret

    def subscription(self) -> Json:
        """Raises NotSetUp where this login has no access to it."""
        found = self.get(f"/subscriptions/{self._account.subscription}", "2022-12-01")
        if found is None:
            raise NotFound(
                f"this login has no access to the subscription {self._account.subscription}",
                hint="az account list --output table",
            )
        return found

    def put(self, wanted: WantedResource) -> None:
        """Returns when the resource exists."""

        def ask() -> None:
            self._resources.resources.begin_create_or_update_by_id(
                wanted.id.lstrip("/"), wanted.body, api_version=wanted.api, polling_interval=_POLL_S
            ).result()

        with speaking(f"creating the {wanted.kind} {wanted.title}"), _named(wanted):
            _once_known(ask)

    def delete(self, id: str, api: str) -> None:
        """Returns when the resource is deleted. A missing one is fine."""

        def ask() -> None:
            self._resources.resources.begin_delete_by_id(
                id.lstrip("/"), api_version=api, polling_interval=_POLL_S
            ).result()

        with speaking(f"deleting {_last(id)}"), suppress(missing_error()):
            _once_known(ask)

    def unregistered(self, namespaces: Sequence[str]) -> list[str]:
        """Which of Azure's services are not registered in this subscription: they refuse requests until they are."""
        with speaking("checking the services of the subscription"):
            return [
                name
                for name in namespaces
                if str(self._resources.providers.get(name).registration_state).lower()
                not in ("registered", "registering")
            ]

    def register(self, namespace: str) -> None:
        with speaking(f"registering {namespace}"):
            self._resources.providers.register(namespace, retry_on_methods=REPEATABLE)

    def set_up_groups(self, tag: str, workspace: str) -> list[tuple[str, Mapping[str, str], str]]:
        """Name, tags and region of the groups that the set-up has tagged."""
        with speaking("looking up the workspace's resource group"):
            found = self._resources.resource_groups.list(filter=f"tagName eq '{tag}' and tagValue eq '{workspace}'")
            return [(one.name, one.tags or {}, one.location) for one in found]

    def node_groups(self, workspace: str) -> list[str]:
        """Resource groups of nodes, of any server."""
        mine = f"tagName eq '{naming.WORKSPACE}' and tagValue eq '{workspace}'"
        with speaking("looking up the VMs of the workspace"):
            found = list(self._resources.resource_groups.list(filter=mine))
        return [one.name for one in found if (one.tags or {}).get(naming.KEY)]

    def node_machines(self, group: str, workspace: str) -> list[tuple[str, str]]:
        """Id and name of each VM of a run in a practitioner's group, or of its scale set."""
        kinds = ("Microsoft.Compute/virtualMachines", naming.SETS)
        found = [one for one in self.parts(group) if one.kind in kinds and naming.marks(one.tags, workspace)]
        instances = tuple(f"{one.name}_" for one in found if one.kind == naming.SETS)
        return [(one.id, one.name) for one in found if not one.name.startswith(instances)]

    def inside(self, group: str) -> list[tuple[str, str, Mapping[str, str]]]:
        """Kind, name and tags of everything in a group."""
        return [(one.kind, one.name, one.tags) for one in self.parts(group)]

    def assigned(self, wanted: WantedResource) -> Json | None:
        """A role assignment with the same effect, whatever its name: Azure refuses a second one."""
        scope, given = wanted.id.split(f"/providers/{ASSIGNMENTS}/")[0], wanted.body["properties"]
        with speaking(f"looking up the role {wanted.title}"):
            listing = self._authorization.role_assignments.list_for_scope(
                scope.lstrip("/"), filter=f"principalId eq '{given['principalId']}'"
            )
            try:
                found = list(listing)
            except missing_error():  # of the scope itself
                return None
            for one in found:
                if same_scope(one.scope, scope) and _last(one.role_definition_id) == _last(given["roleDefinitionId"]):
                    told = {"principalId": one.principal_id, "roleDefinitionId": one.role_definition_id}
                    condition = {"condition": one.condition, "conditionVersion": one.condition_version}
                    return {"id": one.id, "properties": {**told, **condition}}
        return None

    def assignments_of(self, roles: Sequence[str]) -> list[tuple[str, str, str]]:
        """Id, role and principal of all assignments of these roles in the subscription, and of those whose condition
        names them."""
        with speaking("looking up role assignments"):
            found = list(self._authorization.role_assignments.list_for_subscription())
        return [
            (one.id, _last(one.role_definition_id), one.principal_id)
            for one in found
            if any(role in f"{one.role_definition_id} {one.condition or ''}".lower() for role in roles)
        ]

    def stored_bytes(self, url: str, values: Mapping[str, str]) -> int | None:
        """The bytes in the store; None where this login may not list it."""
        try:
            if self.secret:
                own = {"tenant": self._account.tenant, "client": self._account.client, "secret": self.secret}
                values = {**values, **own}
            store = open_store(url, Credential("login", dict(values)))
            return sum(one.size_bytes for one in store.list(""))
        except StokerError:
            return None

    @cached_property
    def _credential(self) -> Any:
        if not self.secret:
            return super()._credential
        from azure.identity import ClientSecretCredential

        account = self._account
        return ClientSecretCredential(
            *(account.tenant, account.client, self.secret),
            authority=account.login,
            disable_instance_discovery=True,
            **({"connection_verify": account.ca_file} if account.ca_file else {}),
        )


def _once_known(ask: Callable[[], None]) -> None:
    """A role or assignment that was just created or deleted takes Azure a while to apply everywhere."""
    from azure.core.exceptions import HttpResponseError

    for pause_s in (*_PAUSES_S, None):
        try:
            ask()
            return
        except HttpResponseError as error:
            if pause_s is None or getattr(error.error, "code", "") not in _SPREADING:
                raise
        time.sleep(pause_s)


@contextmanager
def _named(wanted: WantedResource) -> Iterator[None]:
    """A taken name is not a failure of Azure; a role that is already assigned is fine."""
    from azure.core.exceptions import HttpResponseError

    try:
        yield
    except HttpResponseError as error:
        code = getattr(error.error, "code", "")
        if code in _TAKEN:
            raise Conflict(
                f"the {wanted.kind} name {wanted.title} is taken: these names are unique across all of Azure",
                hint="choose another one with --account",
            ) from error
        if code != "RoleAssignmentExists":
            raise


def same_scope(one: str, other: str) -> bool:
    return one.strip("/").lower() == other.strip("/").lower()


def _last(id: str) -> str:
    return id.rsplit("/", 1)[-1]
