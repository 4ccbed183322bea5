"""Everything of one node as one deployment: one request creates it all, and repeating it changes nothing. Which image
and disk a size boots from: they match its processor, generation and GPU. The network of a gang. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from stoker.providers.azure import naming
from stoker.providers.azure.account.account import Account
from stoker.providers.azure.market.sizes import AzureSize
from stoker.providers.azure.naming import VM, NodePlace

# The first version of Compute that accepts `Standard` as a security type; older ones refuse it unless the subscription
# has the feature UseStandardSecurityType.
COMPUTE, NETWORK, ROLES = "2025-11-01", "2024-05-01", "2022-04-01"
ADMIN = "stoker"
SSH_RULE = "ssh"
GANG = "gang"  # the name of what the nodes of a gang share
PROXIMITY = "Microsoft.Compute/proximityPlacementGroups"
_SCHEMA = "https://schema.management.azure.com/schemas/2019-04-01/deploymentTemplate.json#"

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class MachineChoice:
    """The chosen size and place, and the maximum price per hour of a spot VM. `traits` is what is known of the size;
    image, disk and network depend on it."""

    size: str
    region: str
    spot: bool = False
    max_price: Decimal | None = None
    zone: str = ""
    restore_s: float = 0.0  # how long Azure tries to restore it after an eviction, if it is a scale set
    traits: AzureSize = AzureSize("", "", 0, 0.0, "", spot=True)
    near: bool = False  # in the proximity placement group of its gang


@dataclass(frozen=True, slots=True)
class NodeSite:
    """What all parts of one node need: the account, the place, and the role of the node's own identity, which applies
    only at `role_scope`."""

    account: Account
    place: NodePlace
    role: str
    role_scope: str

    @property
    def group(self) -> str:
        return self.place.group_id(self.account.subscription)

    @property
    def name(self) -> str:
        return self.place.name

    @property
    def vm(self) -> str:
        return self.place.vm_id(self.account.subscription)

    @property
    def node(self) -> str:
        """The VM, or the scale set that creates it."""
        return self.place.node_id(self.account.subscription)

    @property
    def identity(self) -> str:
        """Of a node that is a scale set; plain VMs have a system-assigned identity."""
        return self.place.inside(self.account.subscription, naming.IDENTITIES)

    @property
    def role_first(self) -> bool:
        """A role for a group can exist before the VM: no VM is billed then that cannot remove itself."""
        return self.place.set and self.role_scope == self.group

    @property
    def own_network(self) -> bool:
        """Nodes of a shared group, and of a gang, also share a network."""
        return not self.account.subnet and not self.place.shared

    @property
    def hostname(self) -> str:
        """Unique among those that could resolve it."""
        return self.name if self.place.shared else VM

    def network(self, kind: str) -> str:
        return self.place.inside(self.account.subscription, f"Microsoft.Network/{kind}")

    def subnet(self, region: str) -> str:
        if self.account.subnet:
            return self.account.subnet
        if self.place.gang:
            return f"{self.group}/providers/Microsoft.Network/virtualNetworks/{GANG}/subnets/nodes"
        if self.place.shared:
            return shared_subnet(self.group, region)
        return f"{self.network('virtualNetworks')}/subnets/default"

    def placement_group(self, region: str) -> str:
        """Of a gang's own group, or the one of a shared group in this region."""
        return f"{self.group}/providers/{PROXIMITY}/{GANG}" if self.place.gang else shared_placement(self.group, region)


def shared_subnet(group: str, region: str) -> str:
    return f"{group}/providers/Microsoft.Network/virtualNetworks/{shared_network(region)}/subnets/nodes"


def shared_placement(group: str, region: str) -> str:
    return f"{group}/providers/{PROXIMITY}/{shared_network(region)}"


def shared_network(region: str) -> str:
    """The name of the network, the firewall and the placement group that the nodes of a shared group use in a
    region."""
    return f"stoker-{region}"


def deployment(site: NodeSite, machine: MachineChoice, tags: Mapping[str, str], public_key: str) -> Json:
    """The properties of the deployment. `customData` is a secure parameter: Azure never returns it."""
    if site.place.set:
        resources = [_set(site, machine, public_key), naming.identity(site.name)]
    else:
        resources = _plain(site, machine, public_key)
    if site.own_network:
        resources += [_network(site), _firewall(site)]
    for resource in resources:
        resource |= {"location": machine.region, "tags": dict(tags)}
    resources.append(_role(site))
    return template(resources, customData={"type": "securestring"})


def template(resources: list[Json], **parameters: Json) -> Json:
    """The properties of a deployment of these resources."""
    whole = {"$schema": _SCHEMA, "contentVersion": "1.0.0.0", "parameters": parameters, "resources": resources}
    return {"mode": "Incremental", "template": whole}


def _plain(site: NodeSite, machine: MachineChoice, public_key: str) -> list[Json]:
    resources = [_vm(site, machine, public_key), _nic(site, machine)]
    if site.account.open_ssh:
        resources.append(_address(site, machine))
    if needs_driver(machine.traits, site.account.image):
        resources.append(_drivers(site))
    return resources


def _set(site: NodeSite, machine: MachineChoice, public_key: str) -> Json:
    """Its instance has the disk, the interface and the address of a plain VM, and an identity that outlives it."""
    profile = _profile(site, machine, public_key)
    profile["osProfile"] = naming.host(profile["osProfile"])
    card = _nic(site, machine)["properties"]
    profile["networkProfile"] = naming.interface(site.name, card, public=site.account.addressed(of_set=True))
    if needs_driver(machine.traits, site.account.image):
        extension = {"name": "drivers", "properties": _DRIVER}
        profile["extensionProfile"] = {"extensions": [extension]}
    resource = naming.scale_set(site.name, profile, machine.size, site.identity, machine.restore_s)
    needed = [site.network("virtualNetworks"), site.network("networkSecurityGroups")] if site.own_network else []
    if site.role_first:
        needed.append(f"[resourceId('{_ASSIGNMENTS}', {_role_name(site)})]")
    resource |= {"apiVersion": COMPUTE, "dependsOn": [site.identity, *needed]}
    return resource | {"zones": [machine.zone]} if machine.zone else resource


def _vm(site: NodeSite, machine: MachineChoice, public_key: str) -> Json:
    nic = site.network("networkInterfaces")
    properties = _profile(site, machine, public_key)
    properties["hardwareProfile"] = {"vmSize": machine.size}
    properties["networkProfile"] = {"networkInterfaces": [{"id": nic, "properties": {"deleteOption": "Delete"}}]}
    if machine.near:
        properties["proximityPlacementGroup"] = {"id": site.placement_group(machine.region)}
    if site.place.shared:  # Azure does not tag it: it is recognised by its name
        properties["storageProfile"]["osDisk"]["name"] = f"{site.name}_disk"
    resource: Json = {
        "type": "Microsoft.Compute/virtualMachines",
        "apiVersion": COMPUTE,
        "name": site.name,
        "identity": {"type": "SystemAssigned"},  # of this VM alone: deleted with it, and shared with no other
        "dependsOn": [nic],
        "properties": properties,
    }
    return resource | {"zones": [machine.zone]} if machine.zone else resource


def _profile(site: NodeSite, machine: MachineChoice, public_key: str) -> Json:
    """The profile of a VM, plain or in a scale set."""
    account = site.account
    disk: Json = {
        "createOption": "FromImage",
        "deleteOption": "Delete",
        "diskSizeGB": account.disk_gb,
        "managedDisk": {"storageAccountType": disk_of(machine.traits)},
    }
    properties: Json = {
        "storageProfile": {
            "imageReference": reference(account.image or image_of(machine.traits)),
            "osDisk": disk,
        },
        "osProfile": {
            "computerName": site.hostname,
            "adminUsername": ADMIN,
            "customData": "[parameters('customData')]",
            "linuxConfiguration": {
                "disablePasswordAuthentication": True,
                "ssh": {"publicKeys": [{"path": f"/home/{ADMIN}/.ssh/authorized_keys", "keyData": public_key}]},
            },
        },
        # This version enables Trusted Launch by default, and then unsigned drivers do not load.
        "securityProfile": {"securityType": "Standard"},
    }
    return properties | _spot(site, machine) if machine.spot else properties


def _spot(site: NodeSite, machine: MachineChoice) -> Json:
    most = float(machine.max_price) if machine.max_price is not None else -1  # -1: up to the on-demand price
    return {
        "priority": "Spot",
        "evictionPolicy": site.account.eviction,
        "billingProfile": {"maxPrice": most},
    }


def _nic(site: NodeSite, machine: MachineChoice) -> Json:
    address: Json = {"subnet": {"id": site.subnet(machine.region)}, "privateIPAllocationMethod": "Dynamic"}
    needed = [site.network("virtualNetworks"), site.network("networkSecurityGroups")] if site.own_network else []
    if site.account.open_ssh:
        needed.append(site.network("publicIPAddresses"))
        address["publicIPAddress"] = {"id": needed[-1], "properties": {"deleteOption": "Delete"}}
    properties: Json = {
        "ipConfigurations": [{"name": "first", "properties": address}],
        "enableAcceleratedNetworking": machine.traits.accelerated,
    }
    if site.own_network:
        properties["networkSecurityGroup"] = {"id": site.network("networkSecurityGroups")}
    return _network_resource(site, "networkInterfaces", properties) | {"dependsOn": needed}


def _network(site: NodeSite) -> Json:
    # Newer versions make subnets private by default, and then a node cannot reach its store.
    subnet = {"name": "default", "properties": {"addressPrefix": "10.0.0.0/24", "defaultOutboundAccess": True}}
    return _network_resource(
        site, "virtualNetworks", {"addressSpace": {"addressPrefixes": ["10.0.0.0/16"]}, "subnets": [subnet]}
    )


def _firewall(site: NodeSite) -> Json:
    """By default, Azure blocks all inbound traffic."""
    return _network_resource(site, "networkSecurityGroups", {"securityRules": ssh_rules(site.account)})


def ssh_rules(account: Account) -> list[Json]:
    """A rule for ssh from the configured addresses, where it is enabled; otherwise none."""
    if not account.open_ssh:
        return []
    ssh = {
        "priority": 1000,
        "direction": "Inbound",
        "access": "Allow",
        "protocol": "Tcp",
        "sourceAddressPrefixes": list(account.ssh_from),
        "sourcePortRange": "*",
        "destinationAddressPrefix": "*",
        "destinationPortRange": "22",
    }
    return [{"name": SSH_RULE, "properties": ssh}]


def _address(site: NodeSite, machine: MachineChoice) -> Json:
    resource = _network_resource(site, "publicIPAddresses", {"publicIPAllocationMethod": "Static"})
    resource["sku"] = {"name": "Standard"}
    if machine.zone:
        resource["zones"] = [machine.zone]
    return resource


def _network_resource(site: NodeSite, kind: str, properties: Json) -> Json:
    return {"type": f"Microsoft.Network/{kind}", "apiVersion": NETWORK, "name": site.name, "properties": properties}


_ASSIGNMENTS = "Microsoft.Authorization/roleAssignments"


def _role_name(site: NodeSite) -> str:
    return f"guid('{site.node}', '{site.role}')"


def _role(site: NodeSite) -> Json:
    """What the VM may do, to itself alone. Deleted together with its scope."""
    principal = (
        f"reference('{site.identity}', '{naming.IDENTITY_API}').principalId"
        if site.place.set
        else f"reference('{site.vm}', '{COMPUTE}', 'Full').identity.principalId"
    )
    role = f"subscriptionResourceId('Microsoft.Authorization/roleDefinitions', '{site.role}')"
    resource: Json = {
        "type": _ASSIGNMENTS,
        "apiVersion": ROLES,
        "name": f"[{_role_name(site)}]",
        "dependsOn": [site.identity if site.role_first else site.node],
        "properties": {
            "roleDefinitionId": f"[{role}]",
            "principalId": f"[{principal}]",
            # Without this, Azure looks up the principal before it has replicated, and fails.
            "principalType": "ServicePrincipal",
        },
    }
    return resource if site.role_scope == site.group else resource | {"scope": site.role_scope}


_DRIVER = {
    "publisher": "Microsoft.HpcCompute",
    "type": "NvidiaGpuDriverLinux",
    "typeHandlerVersion": "1.10",
    "autoUpgradeMinorVersion": True,
    "settings": {},
}


def _drivers(site: NodeSite) -> Json:
    """For an image without drivers. The agent waits until they answer."""
    kind = "Microsoft.Compute/virtualMachines/extensions"
    return {
        "type": kind,
        "apiVersion": COMPUTE,
        "name": f"{site.name}/drivers",
        "dependsOn": [site.vm],
        "properties": _DRIVER,
    }


PLAIN = "Canonical:0001-com-ubuntu-server-jammy:22_04-lts-gen2:latest"  # a tenth of the next one's size: boots faster
GENERATION_1 = "Canonical:0001-com-ubuntu-server-jammy:22_04-lts:latest"
ARM = "Canonical:0001-com-ubuntu-server-jammy:22_04-lts-arm64:latest"
HPC = "microsoft-dsvm:ubuntu-hpc:2204:latest"  # has NVIDIA's drivers and a container runtime
ROCM = "microsoft-dsvm:ubuntu-hpc:2204-rocm:latest"  # the same with AMD's drivers


def image_of(size: AzureSize) -> str:
    """`publisher:offer:sku:version`"""
    if size.architecture == "Arm64":
        return ARM
    if not size.generation_2:
        return GENERATION_1
    if size.gpus.count and not size.gpus.nvidia:
        return ROCM
    return HPC if size.gpus.driver_in_image else PLAIN


def needs_driver(size: AzureSize, own_image: str) -> bool:
    """Whether the driver must be installed at the first boot. A custom image is assumed to contain it."""
    if not size.gpus.nvidia or own_image.startswith("/"):
        return False
    return "hpc" not in (own_image or image_of(size)).lower()


def disk_of(size: AzureSize) -> str:
    return "Premium_LRS" if size.premium else "StandardSSD_LRS"


def reference(text: str) -> dict[str, Any]:
    """`publisher:offer:sku:version`, or the id of a custom image."""
    if text.startswith("/"):
        return {"id": text}
    publisher, offer, sku, version = text.split(":")
    return {"publisher": publisher, "offer": offer, "sku": sku, "version": version}


_SPACE, _NODES = "10.0.0.0/16", "10.0.0.0/20"


def gang_network(account: Account, region: str, tags: Mapping[str, str]) -> Json:
    """The properties of a deployment: repeating it changes nothing. Where the account names a subnet, only the
    placement group."""
    near = {"proximityPlacementGroupType": "Standard"}
    resources: list[Json] = [{"type": PROXIMITY, "apiVersion": COMPUTE, "name": GANG, "properties": near}]
    if not account.subnet:
        firewall = f"[resourceId('Microsoft.Network/networkSecurityGroups', '{GANG}')]"
        # By default, Azure allows inbound traffic from the same network and blocks all other.
        subnet: Json = {
            "addressPrefix": _NODES,
            "networkSecurityGroup": {"id": firewall},
            "defaultOutboundAccess": True,  # newer versions make subnets private by default
        }
        space = {
            "addressSpace": {"addressPrefixes": [_SPACE]},
            "subnets": [{"name": "nodes", "properties": subnet}],
        }
        resources += [
            _resource("networkSecurityGroups", {"securityRules": ssh_rules(account)}),
            _resource("virtualNetworks", space) | {"dependsOn": [firewall]},
        ]
    for resource in resources:
        resource |= {"location": region, "tags": dict(tags)}
    return template(resources)


def _resource(kind: str, properties: Json) -> Json:
    return {"type": f"Microsoft.Network/{kind}", "apiVersion": NETWORK, "name": GANG, "properties": properties}
