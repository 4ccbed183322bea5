"""Rules for networks: prefixes inside each other, and a unique priority for every security rule."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from typing import Any

from stoker.twin.arm.requests.ask import needed
from stoker.twin.refusal import invalid

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
