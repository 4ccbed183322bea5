"""The network of a gang: its machines reach each other, and nobody outside reaches them. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from stoker.providers.azure.account.account import Account
from stoker.providers.azure.deployment.template import COMPUTE, GANG, NETWORK, PROXIMITY, Json, ssh_rules, template

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
