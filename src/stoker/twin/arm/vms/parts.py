"""The parts of a VM: its interfaces, identity, secrets and metadata, and its proximity placement group."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from stoker.twin import ids
from stoker.twin.arm import network, resources
from stoker.twin.arm.ask import ArmAnswer, Ask, page, route
from stoker.twin.arm.subscription.roles import IDENTITIES
from stoker.twin.market.prices import ADDRESSES
from stoker.twin.refusal import conflict, invalid
from stoker.twin.state import CloudState, MachinePower, Resource
from stoker.twin.time import power
from stoker.twin.time.power import VMS

PROXIMITY = "Microsoft.Compute/proximityPlacementGroups"
WORD = "proximityPlacementGroup"  # of what is in one
_TYPES = ("Standard", "Ultra")


@route("PUT", PROXIMITY)
def put(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    given = {"proximityPlacementGroupType": "Standard", **(ask.body.get("properties") or {})}
    if given["proximityPlacementGroupType"] not in _TYPES:
        raise invalid(
            f"The value '{given['proximityPlacementGroupType']}' of parameter proximityPlacementGroupType is not valid."
        )
    zones, sizes = ask.body.get("zones") or (), _sizes(given)
    if zones and not sizes:
        raise invalid("Zones of a proximity placement group can only be specified together with 'intent.vmSizes'.")
    if len(zones) > 1:
        raise invalid("A proximity placement group can be in one zone only.")
    if there := cloud.find(ask.id):
        _keep_members(cloud, there, sizes)
    cloud, answer = resources.store(cloud, ask, given, **({"zones": list(zones)} if zones else {}))
    return cloud, ArmAnswer(answer.status, _shown(cloud, cloud.resources[str(answer.body["id"]).lower()]))


@route("GET", PROXIMITY)
def get(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    return cloud, ArmAnswer(200, _shown(cloud, resources.require(cloud, ask)))


@route("GET", "Microsoft.Compute", "proximityPlacementGroups")
def list_all(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    if ask.target.group:
        resources.require_group(cloud, ask)
    return cloud, page(ask, [_shown(cloud, one) for one in cloud.all(PROXIMITY, ask.target.group)])


def named(given: Mapping[str, Any]) -> str:
    """The id of the group that a machine names; empty for none."""
    return str((given.get(WORD) or {}).get("id", ""))


def check(cloud: CloudState, body: Mapping[str, Any], region: str) -> None:
    """Refuses a machine that names a group which is not there or in another region, or which its size or zone is not
    meant for."""
    given = body["properties"]
    if not (id := named(given)):
        return
    group = cloud.find(id)
    if group is None or group.kind != PROXIMITY or group.region != region:
        raise invalid(
            f"Resource {id} referenced by '{WORD}' was not found. Please make sure that the referenced resource "
            "exists, and that both resources are in the same region.",
            "InvalidResourceReference",
        )
    size, sizes = str(given["hardwareProfile"]["vmSize"]), _sizes(group.properties)
    if sizes and size.lower() not in sizes:
        raise invalid(
            f"The VM size {size} is not in the intent of proximity placement group {group.name}: {', '.join(sizes)}."
        )
    zones, theirs = list(body.get("zones") or ()), list(group.body.get("zones") or ())
    if theirs and zones != theirs:
        raise invalid(f"Proximity placement group {group.name} is in zone {theirs[0]}, and the VM is not.")


def check_move(cloud: CloudState, vm: Resource, given: Mapping[str, Any]) -> None:
    """A machine changes its group only while it is deallocated."""
    instance = cloud.instance(vm.id)
    off = instance is not None and instance.power is MachinePower.DEALLOCATED
    if WORD in given and named(given).lower() != named(vm.properties).lower() and not off:
        raise conflict(
            f"Proximity placement group of VM '{vm.name}' cannot be changed while the VM is allocated. Deallocate it "
            "first.",
            "OperationNotAllowed",
        )


def _sizes(given: Mapping[str, Any]) -> list[str]:
    return [str(one).lower() for one in (given.get("intent") or {}).get("vmSizes") or ()]


def _keep_members(cloud: CloudState, group: Resource, sizes: list[str]) -> None:
    """A new intent has to include what is already there."""
    vms = [found for one in _members(cloud, group) if (found := cloud.find(one["id"]))]
    odd = [vm for vm in vms if sizes and str(vm.properties["hardwareProfile"]["vmSize"]).lower() not in sizes]
    if odd:
        raise conflict(
            f"The intent of proximity placement group {group.name} must include the size of {odd[0].id}.",
            "OperationNotAllowed",
        )


def _members(cloud: CloudState, group: Resource) -> list[dict[str, str]]:
    return [{"id": one.id} for one in cloud.all(VMS) if named(one.properties).lower() == group.id.lower()]


def _shown(cloud: CloudState, group: Resource) -> dict[str, Any]:
    return group.having(virtualMachines=_members(cloud, group)).answer()


def _free(cloud: CloudState, group: Resource) -> None:
    if used := _members(cloud, group):
        raise conflict(
            f"Proximity placement group {group.name} cannot be deleted because it still has {used[0]['id']}.",
            "OperationNotAllowed",
        )


resources.taggable(PROXIMITY)
resources.deletable(PROXIMITY, _free)


_SECRET = (("osProfile", "customData"), ("osProfile", "adminPassword"))


def interfaces(cloud: CloudState, ask: Ask, given: Mapping[str, Any]) -> tuple[CloudState, dict[str, Any]]:
    """Attaches the interfaces; those that are only described are created first, as in Azure since 2020-11-01."""
    profile = given["networkProfile"]
    attached = list(profile.get("networkInterfaces") or ())
    for described in profile.get("networkInterfaceConfigurations") or ():
        cloud, id = _make_nic(cloud, ask, described)
        option = described.get("properties", {}).get("deleteOption", "Detach")
        attached.append({"id": id, "properties": {"primary": True, "deleteOption": option}})
    if not attached:
        raise invalid("Virtual machine must have at least one network interface.")
    for one in attached:
        nic = cloud.find(str(one.get("id", "")))
        if nic is None:
            raise invalid(
                f"Resource {one.get('id')} referenced by resource {ask.id} was not found.", "InvalidResourceReference"
            )
        owner = nic.properties.get("virtualMachine", {}).get("id", ask.id)
        if owner.lower() != ask.id.lower():
            raise invalid(f"Network Interface {nic.id} is used by existing resource {owner}.", "NicInUse")
        cloud = cloud.put(nic.having(virtualMachine={"id": ask.id}))
    return cloud, {**given, "networkProfile": {"networkInterfaces": attached}}


def _make_nic(cloud: CloudState, ask: Ask, described: Mapping[str, Any]) -> tuple[CloudState, str]:
    nic = ids.resource_id(ask.target.subscription, ask.target.group, network.NICS, str(described["name"]))
    properties = {key: value for key, value in described.get("properties", {}).items() if key != "deleteOption"}
    configurations = []
    for one in properties.get("ipConfigurations", ()):
        inner = dict(one.get("properties", {}))
        public = inner.pop("publicIPAddressConfiguration", None)
        if public:
            cloud, inner["publicIPAddress"] = _make_address(cloud, ask, public)
        configurations.append({"name": one["name"], "properties": inner})
    body = {"location": ask.body.get("location"), "properties": {**properties, "ipConfigurations": configurations}}
    cloud, _ = network.put_nic(cloud, ask.at(nic, body))
    return cloud, nic


def _make_address(cloud: CloudState, ask: Ask, described: Mapping[str, Any]) -> tuple[CloudState, dict[str, Any]]:
    id = ids.resource_id(ask.target.subscription, ask.target.group, ADDRESSES, str(described["name"]))
    properties = dict(described.get("properties", {}))
    option = properties.pop("deleteOption", "Detach")
    body = {"location": ask.body.get("location"), "sku": described.get("sku"), "properties": properties}
    cloud, _ = network.put_address(cloud, ask.at(id, body))
    return cloud, {"id": id, "properties": {"deleteOption": option}}


def split(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What may be read again, and what may not."""
    visible = dict(given)
    secret: dict[str, Any] = {}
    for section, word in _SECRET:
        if word in (visible.get(section) or {}):
            secret.setdefault(section, {})[word] = visible[section][word]
            visible[section] = {key: value for key, value in visible[section].items() if key != word}
    if "userData" in visible:
        secret["userData"] = visible.pop("userData")
    return visible, secret


def identity(
    cloud: CloudState, ask: Ask, given: Mapping[str, Any] | None, there: Mapping[str, Any] | None = None
) -> dict[str, Any] | None:
    """The VM's identities with their principals."""
    if not given or str(given.get("type", "None")) == "None":
        return None
    told: dict[str, Any] = {"type": given["type"]}
    if "SystemAssigned" in str(given["type"]):
        before = (there or {}).get("principalId")
        told |= {"principalId": before or ask.uuid("system principal"), "tenantId": cloud.tenant}
    named = {}
    for id in given.get("userAssignedIdentities") or ():
        own = cloud.find(id)
        if own is None or own.kind != IDENTITIES:
            raise invalid(f"Resource '{id}' was not found.", "FailedIdentityOperation")
        named[own.id] = {key: own.properties[key] for key in ("principalId", "clientId")}
    return {**told, "userAssignedIdentities": named} if named else told


def address(cloud: CloudState, vm: Resource) -> str:
    nic = cloud.resources[str(vm.properties["networkProfile"]["networkInterfaces"][0]["id"]).lower()]
    return str(nic.properties["ipConfigurations"][0]["properties"]["privateIPAddress"])


def network_of(cloud: CloudState, vm: Resource) -> str:
    nic = cloud.resources[str(vm.properties["networkProfile"]["networkInterfaces"][0]["id"]).lower()]
    return network.network_of(cloud, nic)


def has_way_out(cloud: CloudState, vm: Resource) -> bool:
    """By its own address or a gateway of its subnet; else by Azure's default outbound access, which neither private
    subnets nor instances of Flexible scale sets have."""
    nic = cloud.resources[str(vm.properties["networkProfile"]["networkInterfaces"][0]["id"]).lower()]
    address = nic.properties["ipConfigurations"][0]["properties"]
    subnet = network.subnet(cloud, str(address["subnet"]["id"]))
    if address.get("publicIPAddress") or subnet.get("natGateway"):
        return True
    return subnet.get("defaultOutboundAccess") is not False and not power.set_of(vm)


def custom_data(vm: Resource) -> bytes:
    text = str(vm.secret.get("osProfile", {}).get("customData", "") or vm.secret.get("userData", ""))
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        return b""


def refuse_deleting(vm: Resource, operation: str) -> None:
    if vm.properties["provisioningState"] == "Deleting":
        raise conflict(
            f"Operation '{operation}' is not allowed on VM '{vm.name}' since the VM is marked for deletion. You can "
            "only retry the Delete operation (or wait for an ongoing one to complete).",
            "OperationNotAllowed",
        )


def facts(cloud: CloudState, vm: Resource) -> dict[str, Any]:
    """What the metadata service returns under `compute`."""
    image = vm.properties["storageProfile"].get("imageReference") or {}
    profile = vm.properties.get("osProfile") or {}
    linux = profile.get("linuxConfiguration") or {}
    tags = vm.body.get("tags") or {}
    return {
        "azEnvironment": "AzurePublicCloud",
        "location": vm.region,
        "name": vm.name,
        "offer": image.get("offer", ""),
        "osProfile": {
            "adminUsername": profile.get("adminUsername", ""),
            "computerName": profile.get("computerName", vm.name),
            "disablePasswordAuthentication": str(bool(linux.get("disablePasswordAuthentication"))).lower(),
        },
        "osType": "Linux",
        "priority": vm.properties.get("priority", ""),
        "evictionPolicy": vm.properties.get("evictionPolicy", ""),
        "provider": "Microsoft.Compute",
        "publicKeys": list((linux.get("ssh") or {}).get("publicKeys") or ()),
        "publisher": image.get("publisher", ""),
        "resourceGroupName": vm.group,
        "resourceId": vm.id,
        "sku": image.get("sku", ""),
        "storageProfile": vm.properties["storageProfile"],
        "subscriptionId": cloud.subscription,
        "tags": ";".join(f"{key}:{value}" for key, value in tags.items()),
        "tagsList": [{"name": key, "value": value} for key, value in tags.items()],
        "userData": vm.secret.get("userData", ""),
        "version": image.get("exactVersion", image.get("version", "")),
        "vmId": vm.properties["vmId"],
        "vmSize": vm.properties["hardwareProfile"]["vmSize"],
        "zone": (vm.body.get("zones") or [""])[0],
    }
