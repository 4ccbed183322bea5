"""The few questions and orders this provider has for Azure, through the official SDKs, in our words and errors."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from stoker.errors import NotSetUp, ProviderFailed
from stoker.providers.azure import naming
from stoker.providers.azure.account import PUBLIC_LOGIN, Account
from stoker.providers.azure.refusals import translated
from stoker.providers.azure.template import NETWORK, VM

# The SDKs tell of every request and its headers.
logging.getLogger("azure").setLevel(logging.WARNING)

DEPLOYMENT = "stoker"  # each group has one
_POLL_S = 5.0  # where Azure does not say when to ask again


@dataclass(frozen=True, slots=True)
class Group:
    name: str
    region: str
    tags: Mapping[str, str]
    deleting: bool


@dataclass(frozen=True, slots=True)
class Vm:
    group: str  # in lower case: Azure changes it in some answers
    power: str  # running, starting, deallocated, …; empty: not known yet
    size: str
    region: str
    spot: bool


@dataclass(frozen=True, slots=True)
class Deployed:
    """How far the making of a node has come. One that is not `begun` has a group, and nothing in it."""

    running: bool
    begun: bool = True
    failure: ProviderFailed | None = None


class Starting:
    """A machine that is being switched on again."""

    def __init__(self, group: str, poller: Any) -> None:
        self._group = group
        self._poller = poller

    @property
    def done(self) -> bool:
        return bool(self._poller.done())

    def failure(self) -> ProviderFailed | None:
        """Why it could not be had, once it is done; None where it could."""
        try:
            with speaking(f"starting the machine of {self._group} again"):
                self._poller.result()
        except ProviderFailed as error:
            return error
        return None


class Cloud:
    """Clients are made at the first use: importing the SDKs takes a second, and most servers never need them."""

    def __init__(self, account: Account) -> None:
        self._account = account
        self._ahead = timedelta()  # of Azure's clock before this computer's

    def now(self) -> datetime:
        """As Azure has it, as far as it has been asked: the clock of this computer may be wrong."""
        return datetime.now(UTC) + self._ahead

    def groups(self) -> list[Group]:
        """Those of this workspace."""
        mine = f"tagName eq '{naming.WORKSPACE}' and tagValue eq '{self._account.workspace}'"
        with speaking("looking at Azure"):
            found = self._resources.resource_groups.list(filter=mine, raw_response_hook=self._read_clock)
            return [_group(one) for one in found]

    def marks(self, group: Group) -> naming.Marks | None:
        """None where the group is not ours."""
        return naming.marks(group.tags, self._account.workspace)

    def vms(self) -> list[Vm]:
        """Every machine of ours in the subscription, with its power state."""
        with speaking("looking at Azure's machines"):
            found = list(self._compute.virtual_machines.list_all(status_only="false", expand="instanceView"))
        return [_vm(one) for one in found if naming.marks(one.tags, self._account.workspace)]

    def group(self, name: str) -> Group | None:
        """Whoever's it is."""
        with speaking(f"looking at the group {name}"):
            try:
                return _group(self._resources.resource_groups.get(name))
            except missing_error():
                return None

    def switch_off(self, group: str) -> None:
        """Returns when Azure has taken it on: from then on the machine costs nothing."""
        with speaking(f"switching off the machine of {group}"), suppress(missing_error()):
            self._compute.virtual_machines.begin_deallocate(group, VM, polling=False)

    def log_in_again(self) -> None:
        """The next question is asked with a new login, and with what its file says then."""
        for name in ("_credential", "_resources", "_deployments", "_compute"):
            self.__dict__.pop(name, None)

    def make_group(self, name: str, region: str, tags: Mapping[str, str]) -> None:
        with speaking(f"making the group {name}"):
            self._resources.resource_groups.create_or_update(name, {"location": region, "tags": dict(tags)})

    def mark(self, group: str, tags: Mapping[str, str]) -> None:
        """Changes these tags of a group and leaves the others. Missing is fine: it has nothing to be found by."""
        body = {"operation": "Merge", "properties": {"tags": dict(tags)}}
        scope = naming.group_id(self._account.subscription, group).lstrip("/")
        with speaking(f"marking the group {group}"), suppress(missing_error()):
            self._resources.tags.begin_update_at_scope(scope, body, polling=False)

    def switch_on(self, group: str) -> Starting:
        """Returns when Azure has taken it on. A machine that is on already stays so."""
        with speaking(f"starting the machine of {group} again"):
            return Starting(group, self._compute.virtual_machines.begin_start(group, VM, polling_interval=_POLL_S))

    def deploy(self, group: str, properties: Mapping[str, Any], custom_data: str) -> None:
        """Returns when Azure has taken it on."""
        given = {"customData": {"value": custom_data}}
        body = {"properties": {**properties, "parameters": given}}
        with speaking(f"starting a machine in {group}"), _once():
            self._deployments.deployments.begin_create_or_update(group, DEPLOYMENT, body, polling=False)

    def deployed(self, group: str) -> Deployed | None:
        """None where nothing has been asked for there."""
        with speaking(f"looking at {group}"):
            try:
                found = self._deployments.deployments.get(group, DEPLOYMENT)
            except missing_error() as error:
                begun = getattr(getattr(error, "error", None), "code", "") == "DeploymentNotFound"
                return Deployed(running=False, begun=False) if begun else None
        state = _text(found.properties.provisioning_state)
        if state == "Failed":
            return Deployed(running=False, failure=translated(_Failure(found.properties.error), f"starting {group}"))
        return Deployed(running=state not in ("Succeeded", "Canceled"))

    def delete_group(self, name: str) -> None:
        """Returns when Azure has taken it on. Missing is fine, and so is one that is being deleted."""
        with speaking(f"deleting the group {name}"), suppress(missing_error()):
            self._resources.resource_groups.begin_delete(name, polling=False)

    def resources(self, group: str) -> tuple[str, ...]:
        """Everything in a group, as `kind/name`; a group that is gone has nothing in it."""
        with speaking(f"listing the group {group}"):
            try:
                found = list(self._resources.resources.list_by_resource_group(group))
            except missing_error():
                return ()
        return tuple(sorted(f"{one.type.split('/', 1)[1]}/{one.name}" for one in found))

    def public_address(self, group: str) -> str:
        """Of the machine in this group; empty where it has none."""
        place = (
            f"{naming.group_id(self._account.subscription, group)}/providers/Microsoft.Network/publicIPAddresses/{VM}"
        )
        with speaking(f"looking for the address of {group}"):
            try:
                found = self._resources.resources.get_by_id(place, api_version=NETWORK)
            except missing_error():
                return ""
        return str((found.properties or {}).get("ipAddress") or "")

    def run_command(self, group: str, script: list[str]) -> str:
        """Runs it as root, and returns when it has ended: what Azure says of it."""
        order = {"commandId": "RunShellScript", "script": script}
        with speaking(f"running a command in {group}"):
            made = self._compute.virtual_machines.begin_run_command(group, VM, order, polling_interval=_POLL_S).result()
        return str(made.value[0].message if made.value else "")

    def skus(self, region: str) -> list[Mapping[str, Any]]:
        with speaking(f"listing the sizes of {region}"):
            found = self._compute.resource_skus.list(filter=f"location eq '{region}'")
            return [one.as_dict() for one in found]

    def _read_clock(self, response: Any) -> None:
        if date := response.http_response.headers.get("Date"):
            with suppress(ValueError, TypeError):
                self._ahead = parsedate_to_datetime(date) - datetime.now(UTC)

    @cached_property
    def _resources(self) -> Any:
        from azure.mgmt.resource.resources import ResourceManagementClient

        return self._client(ResourceManagementClient)

    @cached_property
    def _deployments(self) -> Any:
        from azure.mgmt.resource.deployments import DeploymentsMgmtClient

        return self._client(DeploymentsMgmtClient)

    @cached_property
    def _compute(self) -> Any:
        from azure.mgmt.compute import ComputeManagementClient

        return self._client(ComputeManagementClient)

    def _client(self, make: Callable[..., Any]) -> Any:
        given = {"base_url": self._account.arm, "credential_scopes": [f"{self._account.arm.rstrip('/')}/.default"]}
        verify = {"connection_verify": self._account.ca_file} if self._account.ca_file else {}
        return make(self._credential, self._account.subscription, **given, **verify)

    @cached_property
    def _credential(self) -> Any:
        from azure.identity import ClientSecretCredential, DefaultAzureCredential

        account = self._account
        verify = {"connection_verify": account.ca_file} if account.ca_file else {}
        # An Azure of one's own is not among those that the public one vouches for.
        own = {"authority": account.login, "disable_instance_discovery": account.login != PUBLIC_LOGIN}
        if not account.secret_file:
            return DefaultAzureCredential(**own, **verify)
        secret = Path(account.secret_file).read_text(encoding="utf-8").strip()
        return ClientSecretCredential(account.tenant, account.client, secret, **own, **verify)


class _Failure(Exception):
    """What a deployment says of its failure, in the shape of an error that an SDK raises."""

    def __init__(self, error: Any) -> None:
        super().__init__(str(getattr(error, "message", "") or "it failed"))
        self.error = error


@contextmanager
def speaking(doing: str) -> Iterator[None]:
    try:
        from azure.core.exceptions import AzureError
    except ImportError:
        raise NotSetUp("the Azure SDKs are not installed", hint="pip install 'stoker[azure]'") from None
    try:
        yield
    except AzureError as error:
        raise translated(error, doing) from error


@contextmanager
def _once() -> Iterator[None]:
    """A deployment whose answer was lost is asked for again by the SDK, and Azure says that it is under way."""
    from azure.core.exceptions import HttpResponseError

    try:
        yield
    except HttpResponseError as error:
        if getattr(error.error, "code", "") != "DeploymentActive":
            raise


def missing_error() -> type[Exception]:
    from azure.core.exceptions import ResourceNotFoundError

    missing: type[Exception] = ResourceNotFoundError
    return missing


def _text(value: Any) -> str:
    """The SDKs give words that they know as members of an enum, and others as they came."""
    return str(getattr(value, "value", value) or "")


def _group(found: Any) -> Group:
    deleting = _text(found.properties.provisioning_state).lower() == "deleting"
    return Group(name=found.name, region=found.location, tags=found.tags or {}, deleting=deleting)


def _vm(found: Any) -> Vm:
    statuses = (found.instance_view.statuses or ()) if found.instance_view else ()
    power = next((one.code.split("/", 1)[1] for one in statuses if str(one.code).startswith("PowerState/")), "")
    return Vm(
        group=found.id.split("/")[4].lower(),
        power=power.lower(),
        size=_text(found.hardware_profile.vm_size),
        region=found.location,
        spot=_text(found.priority).lower() == "spot",
    )
