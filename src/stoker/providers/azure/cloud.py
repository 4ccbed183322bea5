"""The requests that this provider sends to Azure through the official SDKs, with errors translated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

from stoker.errors import ProviderFailed
from stoker.providers.azure import naming
from stoker.providers.azure.account.account import Account
from stoker.providers.azure.account.clients import POLL_S, Clients, last_word, missing_error, speaking
from stoker.providers.azure.naming import NodePlace
from stoker.providers.azure.refusals import translated
from stoker.providers.azure.template import COMPUTE, NETWORK

DISKS = "2023-10-02"  # has versions of its own
_VERSIONS = {
    "microsoft.network": NETWORK,
    "microsoft.compute": DISKS,
    "microsoft.managedidentity": naming.IDENTITY_API,
}
FORCED = "Microsoft.Compute/virtualMachines,Microsoft.Compute/virtualMachineScaleSets"  # need no clean shutdown


@dataclass(frozen=True, slots=True)
class ResourceGroup:
    name: str
    region: str
    tags: Mapping[str, str]
    deleting: bool


@dataclass(frozen=True, slots=True)
class GroupMember:
    """Something in a group: a resource, or the record of a deployment."""

    id: str
    kind: str
    name: str
    tags: Mapping[str, str]
    deleting: bool = False


@dataclass(frozen=True, slots=True)
class Vm:
    group: str  # in lower case: Azure changes the case in some responses
    name: str
    tags: Mapping[str, str]
    deleting: bool
    power: str  # running, starting, deallocated, …; empty: not known yet
    size: str
    region: str
    spot: bool
    set: str = ""  # the name of the scale set that it is an instance of


@dataclass(frozen=True, slots=True)
class Deployed:
    """How far the deployment of a node is. One that is not `begun` has a group with nothing in it."""

    running: bool
    begun: bool = True
    failure: ProviderFailed | None = None
    set: bool = False  # it creates a scale set

    @property
    def set_refused(self) -> bool:
        """Azure refuses such a scale set here, but may create a plain VM."""
        return self.set and naming.refuses_set(self.failure)


class Starting:
    """A deallocated VM that is being started."""

    def __init__(self, name: str, poller: Any) -> None:
        self._name = name
        self._poller = poller

    @property
    def done(self) -> bool:
        return bool(self._poller.done())

    def failure(self) -> ProviderFailed | None:
        """Why the start failed, once it is done; None where it succeeded."""
        try:
            with speaking(f"restarting the VM of {self._name}"):
                self._poller.result()
        except ProviderFailed as error:
            return error
        return None


class AzureCloud(Clients):
    def __init__(self, account: Account) -> None:
        super().__init__(account)
        self._ahead = timedelta()  # of Azure's clock before this computer's

    def now(self) -> datetime:
        """Azure's time, as of its last response: the clock of this computer may be wrong."""
        return datetime.now(UTC) + self._ahead

    def groups(self) -> list[ResourceGroup]:
        """Those of this workspace."""
        mine = f"tagName eq '{naming.WORKSPACE}' and tagValue eq '{self._account.workspace}'"
        with speaking("listing resource groups"):
            found = self._resources.resource_groups.list(filter=mine, raw_response_hook=self._read_clock)
            return [_group(one) for one in found]

    def marks(self, group: ResourceGroup) -> naming.Marks | None:
        """None where the group is not ours."""
        return naming.marks(group.tags, self._account.workspace)

    def vms(self) -> list[Vm]:
        """Every VM of ours in the subscription, with its power state. Instances of scale sets may lack tags, and are
        recognised by their group or their set's name."""
        with speaking("listing VMs"):
            found = list(self._compute.virtual_machines.list_all())
            workspace = self._account.workspace
            mine = [one for one in found if one.virtual_machine_scale_set or naming.marks(one.tags, workspace)]
            # Azure returns VMs and their power states only in two separate lists.
            states = self._compute.virtual_machines.list_all(status_only="true") if mine else ()
            powers = {one.id.lower(): _power(one) for one in states}
        return [_vm(one, powers.get(one.id.lower(), "")) for one in mine]

    def group(self, name: str) -> ResourceGroup | None:
        """Whether it is ours or not."""
        with speaking(f"reading the resource group {name}"):
            try:
                return _group(self._resources.resource_groups.get(name))
            except missing_error():
                return None

    def machine(self, place: NodePlace) -> tuple[NodePlace, GroupMember] | None:
        """The VM or scale set that exists, with the place as one or the other."""
        for here in (replace(place, set=True), replace(place, set=False)):
            asked = self._compute.virtual_machine_scale_sets if here.set else self._compute.virtual_machines
            with speaking(f"reading the VM of {_named(place)}"), suppress(missing_error()):
                found = asked.get(place.group, place.name)
                return here, GroupMember(found.id, found.type, found.name, found.tags or {})
        return None

    def is_running(self, place: NodePlace) -> bool:
        """Read by itself: a list may omit what exists."""
        with speaking(f"reading the VM of {_named(place)}"), suppress(missing_error()):
            found = self._compute.virtual_machines.get(place.group, place.machine, expand="instanceView")
            return _power(found) == "running" and not _is_deleting(found)
        return False

    def switch_off(self, place: NodePlace) -> None:
        """Returns when Azure has accepted it: from then on the VM itself is not billed."""
        with speaking(f"deallocating the VM of {_named(place)}"), suppress(missing_error()):
            self._compute.virtual_machines.begin_deallocate(place.group, place.machine, polling=False)

    def delete_machine(self, place: NodePlace) -> None:
        """With its disk, interface and address. Returns when Azure has accepted it. A missing VM is fine."""
        sets, vms = self._compute.virtual_machine_scale_sets, self._compute.virtual_machines
        with speaking(f"deleting the VM of {_named(place)}"), suppress(missing_error()):
            if place.set:
                sets.begin_delete(place.group, place.name, force_deletion=True, polling=False)
            else:
                vms.begin_delete(place.group, place.machine, force_deletion=True, polling=False)

    def remove_set(self, place: NodePlace) -> None:
        """Returns when the set is deleted. A missing one is fine."""
        self.delete_by_id(place.set_id(self._account.subscription), COMPUTE)

    def make_group(self, name: str, region: str, tags: Mapping[str, str]) -> None:
        with speaking(f"creating the resource group {name}"):
            self._resources.resource_groups.create_or_update(name, {"location": region, "tags": dict(tags)})

    def mark(self, place: NodePlace, tags: Mapping[str, str]) -> None:
        """Changes these tags and keeps the others. A missing resource is fine."""
        body = {"operation": "Merge", "properties": {"tags": dict(tags)}}
        scope = place.tagged_id(self._account.subscription).lstrip("/")
        with speaking(f"tagging {_named(place)}"), suppress(missing_error()):
            self._resources.tags.begin_update_at_scope(scope, body, polling=False)

    def switch_on(self, place: NodePlace) -> Starting:
        """Returns when Azure has accepted it. A VM that is running stays so."""
        with speaking(f"restarting the VM of {_named(place)}"):
            begun = self._compute.virtual_machines.begin_start(place.group, place.machine, polling_interval=POLL_S)
            return Starting(_named(place), begun)

    def deploy(
        self, place: NodePlace, properties: Mapping[str, Any], custom_data: str, tags: Mapping[str, str]
    ) -> None:
        """Returns when Azure has accepted it."""
        given = {"customData": {"value": custom_data}}
        body = {"properties": {**properties, "parameters": given}, "tags": dict(tags)}
        with speaking(f"starting a VM in {_named(place)}"), _once():
            self._deployments.deployments.begin_create_or_update(place.group, place.deployment, body, polling=False)

    def deploy_parts(self, group: str, properties: Mapping[str, Any]) -> None:
        """Returns when what its nodes share exists."""
        with speaking(f"creating the network of {group}"):
            asked = self._deployments.deployments.begin_create_or_update(
                group, "network", {"properties": dict(properties)}, polling_interval=POLL_S
            )
            asked.result()

    def deployed(self, place: NodePlace) -> Deployed | None:
        """None where nothing was deployed."""
        with speaking(f"reading the deployment of {_named(place)}"):
            try:
                found = self._deployments.deployments.get(place.group, place.deployment)
            except missing_error() as error:
                begun = getattr(getattr(error, "error", None), "code", "") == "DeploymentNotFound"
                return Deployed(running=False, begun=False) if begun else None
        state, doing = _text(found.properties.provisioning_state), f"starting {_named(place)}"
        of_set = (found.tags or {}).get(naming.FORM) == naming.SET
        if state == "Failed":
            return Deployed(running=False, failure=translated(_Failure(found.properties.error), doing), set=of_set)
        return Deployed(running=state not in ("Succeeded", "Canceled"), set=of_set)

    def deployments(self, group: str) -> list[GroupMember]:
        """Deployment records of a group; empty for a group that no longer exists."""
        with speaking(f"listing the deployments of {group}"):
            try:
                found = list(self._deployments.deployments.list_by_resource_group(group))
            except missing_error():
                return []
        return [GroupMember(one.id, "deployments", one.name, one.tags or {}) for one in found]

    def cancel(self, place: NodePlace) -> None:
        """Azure starts no further part of it. A deployment that has just ended is fine."""
        from azure.core.exceptions import ResourceExistsError

        with speaking(f"cancelling the deployment of {_named(place)}"), suppress(missing_error(), ResourceExistsError):
            self._deployments.deployments.cancel(place.group, place.deployment)

    def delete_deployment(self, place: NodePlace) -> None:
        """Deletes the record; the deployed resources stay. A missing one is fine."""
        with speaking(f"deleting the deployment record of {_named(place)}"), suppress(missing_error()):
            self._deployments.deployments.begin_delete(place.group, place.deployment, polling=False)

    def delete_part(self, part: GroupMember) -> None:
        """Returns when Azure has accepted it. A missing part is fine."""
        with speaking(f"deleting {part.name}"), suppress(missing_error()):
            version = _VERSIONS[part.kind.split("/", 1)[0].lower()]
            self._resources.resources.begin_delete_by_id(part.id.lstrip("/"), api_version=version, polling=False)

    def delete_group(self, name: str) -> None:
        """Returns when Azure has accepted it. A group that is missing or already being deleted is fine."""
        with speaking(f"deleting the resource group {name}"), suppress(missing_error()):
            self._resources.resource_groups.begin_delete(name, force_deletion_types=FORCED, polling=False)

    def parts(self, group: str) -> list[GroupMember]:
        """Everything in a group; empty for a group that no longer exists."""
        with speaking(f"listing the resource group {group}"):
            try:
                found = list(self._resources.resources.list_by_resource_group(group, expand="provisioningState"))
            except missing_error():
                return []
        return [_part(one) for one in found]

    def inventory(self) -> dict[str, list[GroupMember]]:
        """Everything in the subscription, by group in lower case: one request, however many nodes there are."""
        found: dict[str, list[GroupMember]] = {}
        with speaking("listing resources"):
            for one in self._resources.resources.list(expand="provisioningState"):
                found.setdefault(one.id.split("/")[4].lower(), []).append(_part(one))
        return found

    def public_address(self, place: NodePlace) -> str:
        """The public address of the VM; empty where it has none."""
        id = place.inside(self._account.subscription, "Microsoft.Network/publicIPAddresses")
        if place.set:  # Azure chose the name
            own = [one for one in self.parts(place.group) if place.owns(one.name)]
            id = next((one.id for one in own if one.kind.lower().endswith("/publicipaddresses")), "")
        found = self.get(id, NETWORK) if id else None
        return str((found or {}).get("properties", {}).get("ipAddress") or "")

    def run_command(self, place: NodePlace, script: list[str]) -> str:
        """Runs it as root and returns Azure's report when it has ended."""
        order = {"commandId": "RunShellScript", "script": script}
        with speaking(f"running a command in {_named(place)}"):
            asked = self._compute.virtual_machines.begin_run_command(
                place.group, place.machine, order, polling_interval=POLL_S
            )
            made = asked.result()
        return str(made.value[0].message if made.value else "")

    def groups_with_role(self, role: str) -> list[str]:
        """Groups in which this login has the role, directly or through a group of users."""
        with speaking("looking up the resource group of this login"):
            found = list(
                self._authorization.role_assignments.list_for_subscription(filter=f"assignedTo('{self.me()}')")
            )
        scopes = [str(one.scope) for one in found if last_word(str(one.role_definition_id)).lower() == role.lower()]
        return sorted({scope.split("/")[4] for scope in scopes if len(scope.strip("/").split("/")) == 4})

    def skus(self, region: str) -> list[Mapping[str, Any]]:
        with speaking(f"listing the VM sizes of {region}"):
            found = self._compute.resource_skus.list(filter=f"location eq '{region}'")
            return [one.as_dict() for one in found]

    def usages(self, region: str) -> dict[str, tuple[int, int]]:
        """By the name of the limit, in lower case: the current usage, and the limit."""
        with speaking(f"checking the quotas in {region}"):
            found = list(self._compute.usage.list(region))
        return {str(one.name.value).lower(): (int(one.current_value), int(one.limit)) for one in found}

    def address_usages(self, region: str) -> dict[str, tuple[int, int]]:
        """The same of the network service. Its SDK is large, and nothing else here needs it."""
        scope = f"/subscriptions/{self._account.subscription}/providers/Microsoft.Network/locations/{region}"
        found = (self.get(f"{scope}/usages", NETWORK) or {}).get("value") or ()
        return {str(one["name"]["value"]): (int(one["currentValue"]), int(one["limit"])) for one in found}

    def _read_clock(self, response: Any) -> None:
        if date := response.http_response.headers.get("Date"):
            with suppress(ValueError, TypeError):
                self._ahead = parsedate_to_datetime(date) - datetime.now(UTC)


class _Failure(Exception):
    """The error of a failed deployment, in the shape of an SDK exception."""

    def __init__(self, error: Any) -> None:
        super().__init__(str(getattr(error, "message", "") or "it failed"))
        self.error = error


@contextmanager
def _once() -> Iterator[None]:
    """The SDK repeats a deployment whose response was lost, and Azure reports that it is already running."""
    from azure.core.exceptions import HttpResponseError

    try:
        yield
    except HttpResponseError as error:
        if getattr(error.error, "code", "") != "DeploymentActive":
            raise


def _text(value: Any) -> str:
    """The SDKs return values that they know as enum members, and others as plain text."""
    return str(getattr(value, "value", value) or "")


def _part(found: Any) -> GroupMember:
    return GroupMember(found.id, found.type, found.name, found.tags or {}, _is_deleting(found))


def _is_deleting(found: Any) -> bool:
    return _text(getattr(found, "provisioning_state", None)).lower() == "deleting"


def _group(found: Any) -> ResourceGroup:
    deleting = _is_deleting(found.properties)
    return ResourceGroup(name=found.name, region=found.location, tags=found.tags or {}, deleting=deleting)


def _power(found: Any) -> str:
    statuses = (found.instance_view.statuses or ()) if found.instance_view else ()
    power = next((one.code.split("/", 1)[1] for one in statuses if str(one.code).startswith("PowerState/")), "")
    return str(power).lower()


def _vm(found: Any, power: str) -> Vm:
    return Vm(
        group=found.id.split("/")[4].lower(),
        name=found.name,
        tags=found.tags or {},
        deleting=_is_deleting(found),
        power=power,
        size=_text(found.hardware_profile.vm_size) if found.hardware_profile else "",
        region=found.location,
        spot=_text(found.priority).lower() == "spot",
        set=last_word(found.virtual_machine_scale_set.id) if found.virtual_machine_scale_set else "",
    )


def _named(place: NodePlace) -> str:
    return place.name if place.shared else place.group
