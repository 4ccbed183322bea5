"""Working public addresses: ports that firewalls allow are opened on the host, and forwarded to the machine."""

from __future__ import annotations

import ipaddress
import logging
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from stoker.twin.arm.network import NICS
from stoker.twin.machines import Machines
from stoker.twin.machines.outward import Listener
from stoker.twin.state import CloudState, MachinePower, Resource

log = logging.getLogger("stoker.twin")

_MOST_PORTS = 64  # of one rule: not all ports of a large range can be opened

Place = tuple[str, int]  # an address of the host's loopback, and a port


@dataclass(frozen=True, slots=True)
class Opening:
    """A port of a machine that is open to some address."""

    machine: str
    firewalls: tuple[Resource, ...]

    def admits(self, port: int, source: str) -> bool:
        return all(_lets_in(one, port, source) for one in self.firewalls)


def places(cloud: CloudState) -> dict[Place, Opening]:
    """Where running machines can be reached from outside."""
    found: dict[Place, Opening] = {}
    for instance in cloud.instances.values():
        vm = cloud.find(instance.vm) if instance.power is MachinePower.RUNNING else None
        for nic in _interfaces(cloud, vm) if vm else ():
            for configuration in nic.properties["ipConfigurations"]:
                public = cloud.find(str((configuration["properties"].get("publicIPAddress") or {}).get("id", "")))
                if public:
                    firewalls = _firewalls(cloud, nic, configuration)
                    opening = Opening(instance.name, tuple(firewalls))
                    found |= {(public.properties["ipAddress"], port): opening for port in open_ports(firewalls)}
    return found


def open_ports(firewalls: list[Resource]) -> list[int]:
    """Ports that every firewall on the way explicitly allows. Without a firewall nothing is allowed, as with Azure's
    standard addresses."""
    named = {port for one in firewalls for rule in _inbound(one) if _allows(rule) for port in _ports(rule)}
    return sorted(port for port in named if all(_lets_in(one, port) for one in firewalls))


def _lets_in(firewall: Resource, port: int, source: str = "") -> bool:
    """The first rule that matches the port, and the source if given, decides."""
    speaking = (rule for rule in _inbound(firewall) if _speaks_of(rule, port))
    return next((_allows(rule) for rule in speaking if not source or _is_from(rule, source)), False)


def _is_from(rule: Mapping[str, Any], source: str) -> bool:
    named = [*(rule.get("sourceAddressPrefixes") or ()), rule.get("sourceAddressPrefix") or ""]
    return any(text in ("*", "Internet") or _holds(str(text), source) for text in named)


def _holds(network: str, address: str) -> bool:
    try:
        return ipaddress.ip_address(address) in ipaddress.ip_network(network)
    except ValueError:  # an Azure service tag: no address of the host belongs to it
        return False


def _inbound(firewall: Resource) -> list[Mapping[str, Any]]:
    rules = [one["properties"] for one in firewall.properties.get("securityRules", ())]
    ours = (rule for rule in rules if str(rule.get("direction", "")).lower() == "inbound")
    return sorted(
        (rule for rule in ours if str(rule.get("protocol", "*")).lower() in ("*", "tcp")),
        key=lambda rule: int(rule.get("priority", 4096)),
    )


def _allows(rule: Mapping[str, Any]) -> bool:
    return str(rule.get("access", "")).lower() == "allow"


def _spans(rule: Mapping[str, Any]) -> Iterator[tuple[int, int]]:
    for text in (*(rule.get("destinationPortRanges") or ()), rule.get("destinationPortRange") or ""):
        first, _, last = str(text).partition("-")
        if text == "*":
            yield 0, 65535
        elif first.isdigit():
            yield int(first), int(last or first)


def _ports(rule: Mapping[str, Any]) -> Iterator[int]:
    for first, last in _spans(rule):
        if last - first < _MOST_PORTS:
            yield from range(first, last + 1)


def _speaks_of(rule: Mapping[str, Any], port: int) -> bool:
    return any(first <= port <= last for first, last in _spans(rule))


def _interfaces(cloud: CloudState, vm: Resource) -> list[Resource]:
    named = (vm.properties.get("networkProfile") or {}).get("networkInterfaces") or ()
    found = (cloud.find(str(one.get("id", ""))) for one in named)
    return [nic for nic in found if nic is not None and nic.kind == NICS]


def _firewalls(cloud: CloudState, nic: Resource, configuration: Mapping[str, Any]) -> list[Resource]:
    subnet = str(configuration["properties"]["subnet"]["id"])
    network = cloud.find(subnet.rsplit("/subnets/", 1)[0])
    parts = network.properties.get("subnets", ()) if network else ()
    around: Mapping[str, Any] = next(
        (one["properties"] for one in parts if str(one["id"]).lower() == subnet.lower()), {}
    )
    ids = [str((each.get("networkSecurityGroup") or {}).get("id", "")) for each in (nic.properties, around)]
    return [found for id in ids if id and (found := cloud.find(id))]


class Frontage:
    """Called with the cloud after every change; listens exactly at the current places."""

    def __init__(self, machines: Machines) -> None:
        self._machines = machines
        self._open: dict[Place, tuple[str, Listener]] = {}
        self._wanted: dict[Place, Opening] = {}

    def look(self, cloud: CloudState) -> None:
        wanted = self._wanted = places(cloud)
        for place, (machine, listener) in list(self._open.items()):
            if place not in wanted or wanted[place].machine != machine:
                listener.close()
                del self._open[place]
        for place, opening in wanted.items():
            if place not in self._open:
                self._listen(place, opening.machine)

    def close(self) -> None:
        for _, listener in self._open.values():
            listener.close()
        self._open.clear()

    def _listen(self, place: Place, machine: str) -> None:
        try:
            listening = socket.create_server(place)
        except OSError as error:  # not Linux, not root, or in use: the machine runs without it
            log.warning("could not listen on %s:%d for machine %s: %s", *place, machine, error.strerror)
            return
        self._open[place] = (machine, Listener(listening, partial(self._pass_on, place)))

    def _pass_on(self, place: Place, connection: socket.socket) -> None:
        """By the current rules; a connection that they do not allow gets no response."""
        opening = self._wanted.get(place)
        if opening and opening.admits(place[1], str(connection.getpeername()[0])):
            self._machines.connect(opening.machine, place[1], connection)
