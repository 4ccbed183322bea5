"""Everything of one node as one deployment: one request makes it all, and making it again changes nothing. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from stoker.providers.azure.account import GPU_IMAGE, PLAIN_IMAGE, Account

VM = "node"  # names within the node's own group
COMPUTE, NETWORK, IDENTITY, ROLES = "2024-07-01", "2024-05-01", "2023-01-31", "2022-04-01"
ADMIN = "stoker"
_SCHEMA = "https://schema.management.azure.com/schemas/2019-04-01/deploymentTemplate.json#"

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Machine:
    """The size and place that were chosen, and the most to pay for an hour of it where it is spot."""

    size: str
    region: str
    spot: bool = False
    max_price: Decimal | None = None
    zone: str = ""
    gpus: int = 0


def deployment(account: Account, group_id: str, machine: Machine, tags: Mapping[str, str], public_key: str) -> Json:
    """The properties of the deployment. `customData` is a secure parameter: nobody reads it back from Azure."""
    resources = [_vm(account, group_id, machine, public_key), _nic(account, group_id)]
    if not account.subnet:
        resources += [_network(), _firewall(account)]
    if account.open_ssh:
        resources.append(_address(machine))
    if not account.identity:
        resources.append(_identity())
    if machine.gpus and not has_drivers(_image(account, machine)):
        resources.append(_drivers(group_id))
    for resource in resources:
        resource |= {"location": machine.region, "tags": dict(tags)}
    if account.principal or not account.identity:
        resources.append(_role(account, group_id))
    template = {
        "$schema": _SCHEMA,
        "contentVersion": "1.0.0.0",
        "parameters": {"customData": {"type": "securestring"}},
        "resources": resources,
    }
    return {"mode": "Incremental", "template": template}


def _vm(account: Account, group: str, machine: Machine, public_key: str) -> Json:
    nic = f"{group}/providers/Microsoft.Network/networkInterfaces/{VM}"
    properties: Json = {
        "hardwareProfile": {"vmSize": machine.size},
        "storageProfile": {
            "imageReference": image_reference(_image(account, machine)),
            "osDisk": {
                "createOption": "FromImage",
                "deleteOption": "Delete",
                "diskSizeGB": account.disk_gb,
                "managedDisk": {"storageAccountType": "Premium_LRS"},
            },
        },
        "osProfile": {
            "computerName": VM,
            "adminUsername": ADMIN,
            "customData": "[parameters('customData')]",
            "linuxConfiguration": {
                "disablePasswordAuthentication": True,
                "ssh": {"publicKeys": [{"path": f"/home/{ADMIN}/.ssh/authorized_keys", "keyData": public_key}]},
            },
        },
        "networkProfile": {"networkInterfaces": [{"id": nic, "properties": {"deleteOption": "Delete"}}]},
    }
    if machine.spot:
        most = float(machine.max_price) if machine.max_price is not None else -1  # -1: up to the price on demand
        properties |= {
            "priority": "Spot",
            "evictionPolicy": account.eviction,
            "billingProfile": {"maxPrice": most},
            # Without this the metadata service says nothing before the machine goes.
            "scheduledEventsProfile": {"terminateNotificationProfile": {"enable": True, "notBeforeTimeout": "PT5M"}},
        }
    resource: Json = {
        "type": "Microsoft.Compute/virtualMachines",
        "apiVersion": COMPUTE,
        "name": VM,
        "dependsOn": [nic],
        "properties": properties,
    }
    identity = account.identity or _identity_id(group)
    resource["identity"] = {"type": "UserAssigned", "userAssignedIdentities": {identity: {}}}
    if not account.identity:
        resource["dependsOn"].append(identity)
    if machine.zone:
        resource["zones"] = [machine.zone]
    return resource


def _nic(account: Account, group: str) -> Json:
    network = f"{group}/providers/Microsoft.Network"
    subnet = account.subnet or f"{network}/virtualNetworks/{VM}/subnets/default"
    address: Json = {"subnet": {"id": subnet}, "privateIPAllocationMethod": "Dynamic"}
    needed = [] if account.subnet else [f"{network}/virtualNetworks/{VM}", f"{network}/networkSecurityGroups/{VM}"]
    if account.open_ssh:
        needed.append(f"{network}/publicIPAddresses/{VM}")
        address["publicIPAddress"] = {"id": needed[-1], "properties": {"deleteOption": "Delete"}}
    properties: Json = {"ipConfigurations": [{"name": "first", "properties": address}]}
    if not account.subnet:
        properties["networkSecurityGroup"] = {"id": f"{network}/networkSecurityGroups/{VM}"}
    return _network_resource("networkInterfaces", properties) | {"dependsOn": needed}


def _network() -> Json:
    subnet = {"name": "default", "properties": {"addressPrefix": "10.0.0.0/24"}}
    return _network_resource(
        "virtualNetworks", {"addressSpace": {"addressPrefixes": ["10.0.0.0/16"]}, "subnets": [subnet]}
    )


def _firewall(account: Account) -> Json:
    """Azure lets nothing in by itself; ssh only where somebody asked for it."""
    ssh = {
        "priority": 1000,
        "direction": "Inbound",
        "access": "Allow",
        "protocol": "Tcp",
        "sourceAddressPrefix": "*",
        "sourcePortRange": "*",
        "destinationAddressPrefix": "*",
        "destinationPortRange": "22",
    }
    rules = [{"name": "ssh", "properties": ssh}] if account.open_ssh else []
    return _network_resource("networkSecurityGroups", {"securityRules": rules})


def _address(machine: Machine) -> Json:
    resource = _network_resource("publicIPAddresses", {"publicIPAllocationMethod": "Static"})
    resource["sku"] = {"name": "Standard"}
    if machine.zone:
        resource["zones"] = [machine.zone]
    return resource


def _network_resource(kind: str, properties: Json) -> Json:
    return {"type": f"Microsoft.Network/{kind}", "apiVersion": NETWORK, "name": VM, "properties": properties}


def _identity_id(group: str) -> str:
    return f"{group}/providers/Microsoft.ManagedIdentity/userAssignedIdentities/{VM}"


def _identity() -> Json:
    """Who the machine is when it removes itself."""
    kind = "Microsoft.ManagedIdentity/userAssignedIdentities"
    return {"type": kind, "apiVersion": IDENTITY, "name": VM, "properties": {}}


def _role(account: Account, group: str) -> Json:
    """What it may do, in its own group alone. It goes with the group, which a role of its own would not."""
    kind, identity = "Microsoft.Authorization/roleAssignments", _identity_id(group)
    known = account.principal if account.identity else ""
    role = f"subscriptionResourceId('Microsoft.Authorization/roleDefinitions', '{account.role}')"
    properties = {
        "roleDefinitionId": f"[{role}]",
        "principalId": known or f"[reference('{identity}', '{IDENTITY}').principalId]",
        # Without this Azure looks for the principal where it may not have arrived yet, and fails.
        "principalType": "ServicePrincipal",
    }
    name = f"[guid('{group}', '{account.role}')]"
    needed = [] if known else [identity]
    return {"type": kind, "apiVersion": ROLES, "name": name, "dependsOn": needed, "properties": properties}


def _drivers(group: str) -> Json:
    """For an image that comes without them. The agent waits until they answer."""
    properties = {
        "publisher": "Microsoft.HpcCompute",
        "type": "NvidiaGpuDriverLinux",
        "typeHandlerVersion": "1.10",
        "autoUpgradeMinorVersion": True,
        "settings": {},
    }
    vm = f"{group}/providers/Microsoft.Compute/virtualMachines/{VM}"
    kind = "Microsoft.Compute/virtualMachines/extensions"
    return {
        "type": kind,
        "apiVersion": COMPUTE,
        "name": f"{VM}/drivers",
        "dependsOn": [vm],
        "properties": properties,
    }


def _image(account: Account, machine: Machine) -> str:
    return account.image or (GPU_IMAGE if machine.gpus else PLAIN_IMAGE)


def has_drivers(image: str) -> bool:
    """Images for high-performance computing do, and one's own is supposed to."""
    return image.startswith("/") or "hpc" in image.lower()


def image_reference(text: str) -> Json:
    """`publisher:offer:sku:version`, or the id of an image of one's own."""
    if text.startswith("/"):
        return {"id": text}
    publisher, offer, sku, version = text.split(":")
    return {"publisher": publisher, "offer": offer, "sku": sku, "version": version}
