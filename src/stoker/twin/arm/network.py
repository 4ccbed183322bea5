"""Virtual networks, subnets, security groups, public addresses and network interfaces, with their rules."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any
from urllib.parse import urlsplit

from stoker.twin import ids
from stoker.twin.arm import resources
from stoker.twin.arm.ask import ArmAnswer, Ask, needed, page, route
from stoker.twin.market import prices
from stoker.twin.market.prices import ADDRESSES
from stoker.twin.refusal import Refused, invalid, not_found, parent_not_found
from stoker.twin.state import Charge, CloudState, Resource

Prefix = ipaddress.IPv4Network | ipaddress.IPv6Network
_RULE_WORDS = {
    "direction": ("Inbound", "Outbound"),
    "access": ("Allow", "Deny"),
    "protocol": ("*", "Tcp", "Udp", "Icmp", "Esp", "Ah"),
}


def check_subnets(space: Sequence[Any], subnets: Sequence[Mapping[str, Any]]) -> None:
    """Each inside the network, and no overlaps."""
    spaces = [_prefix(one) for one in space]
    seen: list[tuple[str, Prefix]] = []
    for subnet in subnets:
        has = subnet["properties"]
        for text in has.get("addressPrefixes") or [needed(has, "addressPrefix")]:
            prefix, name = _prefix(text), str(subnet["name"])
            if not any(_inside(prefix, one) for one in spaces):
                raise invalid(
                    f"Subnet '{name}' is not valid because its IP address range is outside the IP address range of the "
                    "virtual network.",
                    "NetcfgSubnetRangeOutsideVnet",
                )
            if other := next((one for one, space in seen if prefix.overlaps(space)), ""):
                raise invalid(
                    f"Subnet '{name}' is not valid because its IP address range overlaps with that of an existing "
                    "subnet "
                    f"'{other}'.",
                    "NetcfgSubnetRangesOverlap",
                )
            seen.append((name, prefix))


def check_rules(rules: Sequence[Mapping[str, Any]]) -> None:
    """Each with a unique priority from 100 to 4096 per direction."""
    taken: dict[tuple[int, str], str] = {}
    for rule in rules:
        name, has = str(rule["name"]), rule["properties"]
        for word, allowed in _RULE_WORDS.items():
            if str(has.get(word, "")).lower() not in [one.lower() for one in allowed]:
                raise invalid(
                    f"Security rule {name} has invalid {word.title()}. Value provided: {has.get(word)} Allowed values: "
                    f"{', '.join(allowed)}.",
                    f"SecurityRuleInvalid{word.title()}",
                )
        priority = has.get("priority")
        if not isinstance(priority, int) or not 100 <= priority <= 4096:
            raise invalid(
                f"Security rule has invalid Priority. Value provided: {priority} Allowed range 100-4096.",
                "SecurityRuleInvalidPriority",
            )
        key = (priority, str(has["direction"]).lower())
        if key in taken:
            raise invalid(
                f"Security rule {name} conflicts with rule {taken[key]}. Rules cannot have the same Priority and "
                "Direction.",
                "SecurityRuleConflict",
            )
        taken[key] = name


def _prefix(text: Any) -> Prefix:
    try:
        return ipaddress.ip_network(str(text))
    except ValueError:
        raise invalid(f"Value provided: {text} is not a valid CIDR notation.", "InvalidCIDRNotation") from None


def _inside(prefix: Prefix, space: Prefix) -> bool:
    return prefix.version == space.version and space.overlaps(prefix) and prefix.prefixlen >= space.prefixlen


NETWORKS = "Microsoft.Network/virtualNetworks"
RULES = "Microsoft.Network/networkSecurityGroups"
NICS = "Microsoft.Network/networkInterfaces"

# On the host's own loopback, so that they can be connected to. Each twin on a host has its own range, by its port.
_PUBLIC = int(ipaddress.ip_address("127.64.0.0"))
_PER_TWIN = 64
_FIRST_HOST = 4  # Azure reserves the first four of each subnet


@route("PUT", NETWORKS)
def put_network(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    given = ask.body.get("properties", {})
    subnets = [_part(ask, "subnets", one) for one in given.get("subnets", ())]
    check_subnets(needed(given, "addressSpace", "addressPrefixes"), subnets)
    return resources.store(cloud, ask, {**given, "subnets": subnets})


@route("PUT", RULES)
def put_rules(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    given = ask.body.get("properties", {})
    rules = [_part(ask, "securityRules", one) for one in given.get("securityRules", ())]
    check_rules(rules)
    return resources.store(cloud, ask, {**given, "securityRules": rules})


def _part(ask: Ask, word: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """A subnet or rule: part of its parent's body, with its own id."""
    properties = {**given.get("properties", {}), "provisioningState": "Succeeded"}
    id = f"{ask.id}/{word}/{needed(given, 'name')}"
    return {"id": id, "name": given["name"], "type": f"{ask.target.kind}/{word}", "properties": properties}


def _parts(kind: str, word: str) -> None:
    """Registers the requests for the parts of one parent, each by name."""

    def parent(cloud: CloudState, ask: Ask) -> Resource:
        there = cloud.find(ask.target.parent.id if not ask.target.tail else ask.id)
        if there is None:
            raise parent_not_found(ask.target.parent.name)
        return there

    def names(resource: Resource) -> dict[str, Any]:
        return {str(one["name"]).lower(): one for one in resource.properties.get(word, ())}

    def put(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
        owner = parent(cloud, ask)
        known = names(owner)
        part = _part(ask.at(owner.id, {}), word, {**ask.body, "name": ask.target.name})
        changed = {**known, ask.target.name.lower(): part}
        if word == "securityRules":
            check_rules(list(changed.values()))
        else:
            check_subnets(owner.properties["addressSpace"]["addressPrefixes"], list(changed.values()))
        status = 200 if ask.target.name.lower() in known else 201
        return cloud.put(owner.having(**{word: list(changed.values())})), ArmAnswer(status, part)

    def get(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
        part = names(parent(cloud, ask)).get(ask.target.name.lower())
        if part is None:
            raise Refused(404, "NotFound", f"Resource {ask.id} not found.")
        return cloud, ArmAnswer(200, part)

    def list_all(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
        return cloud, page(ask, list(parent(cloud, ask).properties.get(word, ())))

    def delete(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
        owner = parent(cloud, ask)
        left = {key: one for key, one in names(owner).items() if key != ask.target.name.lower()}
        if word == "subnets" and _in_subnet(cloud, ask.id):
            raise _in_use("InUseSubnetCannotBeDeleted", "Subnet", ask.target.name, _in_subnet(cloud, ask.id))
        return cloud.put(owner.having(**{word: list(left.values())})), ArmAnswer(200)

    for method, handler in (("PUT", put), ("GET", get), ("DELETE", delete)):
        route(method, f"{kind}/{word}")(handler)
    route("GET", kind, word)(list_all)


@route("PUT", ADDRESSES)
def put_address(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    there = cloud.find(ask.id)
    given = {"publicIPAllocationMethod": "Static", "publicIPAddressVersion": "IPv4", **ask.body.get("properties", {})}
    if there is None:
        prices.check_addresses(cloud, resources.region_of(cloud, ask), {**ask.body, "properties": given})
    taken = {one.properties.get("ipAddress") for one in cloud.all(ADDRESSES)}
    address = there.properties["ipAddress"] if there else next(one for one in _public(ask) if one not in taken)
    kept = (
        {"ipConfiguration": there.properties["ipConfiguration"]}
        if there and "ipConfiguration" in there.properties
        else {}
    )
    cloud, answer = resources.store(cloud, ask, {**given, **kept, "ipAddress": address})
    charge = Charge(answer.body["id"], "address", "", answer.body["location"], ask.now)
    return prices.begin(cloud, charge), answer


def _public(ask: Ask) -> Iterator[str]:
    first = _PUBLIC + (urlsplit(ask.base).port or 443) * _PER_TWIN
    return (str(ipaddress.ip_address(first + number)) for number in count(1))


@route("PUT", NICS)
def put_nic(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    there = cloud.find(ask.id)
    given = ask.body.get("properties", {})
    region = resources.region_of(cloud, ask)
    if (rules := (given.get("networkSecurityGroup") or {}).get("id")) is not None:
        _same_region(cloud, str(rules), region)
    configurations = [
        _configuration(cloud, ask, one, there) for one in needed(ask.body, "properties", "ipConfigurations")
    ]
    kept = (
        {"virtualMachine": there.properties["virtualMachine"]} if there and "virtualMachine" in there.properties else {}
    )
    properties = {
        **given,
        **kept,
        "ipConfigurations": configurations,
        "macAddress": "00-0D-3A-" + "-".join(ask.uuid("mac")[index : index + 2].upper() for index in (0, 2, 4)),
        "primary": True,
        "resourceGuid": there.properties["resourceGuid"] if there else ask.uuid("nic"),
    }
    cloud, answer = resources.store(cloud, ask, properties)
    for one in configurations:
        public = cloud.find(str((one["properties"].get("publicIPAddress") or {}).get("id", "")))
        if public:
            cloud = cloud.put(public.having(ipConfiguration={"id": one["id"]}))
    return cloud, answer


def _configuration(cloud: CloudState, ask: Ask, given: Mapping[str, Any], there: Resource | None) -> dict[str, Any]:
    properties = given.get("properties", {})
    subnet = str(needed(properties, "subnet", "id"))
    region = resources.region_of(cloud, ask)
    prefix = prefix_of(cloud, subnet)
    _same_region(cloud, subnet.rsplit("/subnets/", 1)[0], region)
    public = (properties.get("publicIPAddress") or {}).get("id")
    if public:
        _same_region(cloud, str(public), region)
    before = there.properties["ipConfigurations"][0]["properties"] if there else {}
    wanted = properties.get("privateIPAddress") or before.get("privateIPAddress")
    id = f"{ask.id}/ipConfigurations/{given.get('name', 'ipconfig1')}"
    return {
        "id": id,
        "name": given.get("name", "ipconfig1"),
        "properties": {
            "privateIPAllocationMethod": "Dynamic",
            "primary": True,
            **properties,
            "privateIPAddress": wanted or _free(cloud, subnet, prefix),
            "provisioningState": "Succeeded",
        },
    }


def _same_region(cloud: CloudState, id: str, region: str) -> None:
    found = cloud.find(id)
    if found is None or found.region != region:
        raise _reference(id)


def subnet(cloud: CloudState, id: str) -> Mapping[str, Any]:
    """Its properties."""
    network = cloud.find(id.rsplit("/subnets/", 1)[0])
    for part in network.properties.get("subnets", ()) if network else ():
        if str(part["id"]).lower() == id.lower():
            properties: Mapping[str, Any] = part["properties"]
            return properties
    raise _reference(id)


def prefix_of(cloud: CloudState, id: str) -> str:
    found = subnet(cloud, id)
    prefixes = found.get("addressPrefixes") or [found.get("addressPrefix")]
    return str(prefixes[0])


def _free(cloud: CloudState, subnet: str, prefix: str) -> str:
    taken = {one["properties"].get("privateIPAddress") for one in _in_subnet(cloud, subnet)}
    for address in list(ipaddress.ip_network(prefix).hosts())[_FIRST_HOST - 1 :]:
        if str(address) not in taken:
            return str(address)
    raise Refused(400, "SubnetIsFull", f"Subnet {subnet.rsplit('/', 1)[-1]} with address prefix {prefix} is full.")


def _in_subnet(cloud: CloudState, subnet: str) -> list[dict[str, Any]]:
    return [
        configuration
        for nic in cloud.all(NICS)
        for configuration in nic.properties["ipConfigurations"]
        if str(configuration["properties"]["subnet"]["id"]).lower() == subnet.lower()
    ]


def _reference(id: str) -> Refused:
    return invalid(
        f"Resource {id} referenced by resource was not found. Please make sure that the referenced resource exists, "
        "and that both resources are in the same region.",
        "InvalidResourceReference",
    )


def _in_use(code: str, title: str, name: str, by: list[Any]) -> Refused:
    users = ", ".join(str(one["id"] if isinstance(one, Mapping) else one.id) for one in by)
    return invalid(f"{title} {name} is in use by {users} and cannot be deleted.", code)


def _network_free(cloud: CloudState, network: Resource) -> None:
    for subnet in network.properties.get("subnets", ()):
        if used := _in_subnet(cloud, subnet["id"]):
            raise _in_use("InUseSubnetCannotBeDeleted", "Subnet", subnet["name"], used)


def _rules_free(cloud: CloudState, rules: Resource) -> None:
    users = [
        nic
        for nic in cloud.all(NICS)
        if str((nic.properties.get("networkSecurityGroup") or {}).get("id", "")).lower() == rules.id.lower()
    ]
    if users:
        raise _in_use("InUseNetworkSecurityGroupCannotBeDeleted", "Network security group", rules.id, users)


def _address_free(_cloud: CloudState, address: Resource) -> None:
    if user := address.properties.get("ipConfiguration"):
        raise _in_use("PublicIPAddressCannotBeDeleted", "Public IP address", address.id, [user])


def _nic_free(_cloud: CloudState, nic: Resource) -> None:
    if user := nic.properties.get("virtualMachine"):
        message = (
            f"Network Interface {nic.id} is used by existing resource {user['id']}. In order to delete the network "
        )
        raise invalid(message + "interface, it must be dissociated from the resource.", "NicInUse")


for _kind, _check, _verb in (
    (NETWORKS, _network_free, "delete"),
    (RULES, _rules_free, "delete"),
    (ADDRESSES, _address_free, "delete"),
    (NICS, _nic_free, "nic.delete"),
):
    resources.readable(_kind)
    resources.taggable(_kind)
    resources.deletable(_kind, _check, _verb)
_parts(NETWORKS, "subnets")
_parts(RULES, "securityRules")


def network_of(cloud: CloudState, nic: Resource) -> str:
    """The id of the virtual network an interface is in."""
    subnet = str(nic.properties["ipConfigurations"][0]["properties"]["subnet"]["id"])
    network = cloud.find(subnet.rsplit("/subnets/", 1)[0])
    if network is None:
        raise not_found(NETWORKS, ids.read(subnet).names[0], nic.group)
    return network.id
