"""The parts of a VM: its interfaces, identity and secrets, and its metadata."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from stoker.twin import ids
from stoker.twin.arm import network
from stoker.twin.arm.requests.ask import Ask
from stoker.twin.arm.subscription.roles import IDENTITIES
from stoker.twin.market.addresses import ADDRESSES
from stoker.twin.refusal import conflict, invalid
from stoker.twin.state import CloudState, Resource
from stoker.twin.time import power

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
