"""Sockets of machines: listeners that can be closed, working public addresses, whose allowed ports are forwarded to
the machine, and the way out through a proxy."""

from __future__ import annotations

import ipaddress
import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from stoker.twin.arm.network import NICS
from stoker.twin.machines import Machines
from stoker.twin.state import CloudState, MachinePower, Resource

Handle = Callable[[socket.socket], None]


class Listener:
    """`handle` may block; shutting down its socket wakes it, and it need not close it."""

    def __init__(self, listening: socket.socket, handle: Handle) -> None:
        self._listening = listening
        self._handle = handle
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._closed = False
        threading.Thread(target=self._accept, daemon=True, name="listener").start()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for connection in self._open:
                _shut(connection)
        _shut(self._listening)
        self._listening.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            with self._lock:
                if self._closed:
                    connection.close()
                    return
                self._open.add(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True, name="connection").start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with suppress(OSError):
                self._handle(connection)
        finally:
            with self._lock:
                self._open.discard(connection)
            connection.close()


def _shut(each: socket.socket) -> None:
    with suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)


PORT = 3128
_LARGEST_HEAD = 1 << 16
_WITHIN_S = 20.0

Dial = Callable[[str, int], socket.socket]


def variables() -> dict[str, str]:
    """Variables for programs in the machine. Its own loopback and its metadata are excluded."""
    proxy, inside = f"http://127.0.0.1:{PORT}", "localhost,127.0.0.1,::1,169.254.169.254,10.0.0.0/8"
    given = {"http_proxy": proxy, "https_proxy": proxy, "no_proxy": inside}
    return {**given, "HTTPS_PROXY": proxy, "NO_PROXY": inside}


def dial(host: str, port: int) -> socket.socket:
    """Raises `PermissionError` for the host's own loopback and link-local addresses, where real metadata may be."""
    refused: OSError = PermissionError(f"{host} is the host itself")
    for *_, found in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        address = str(found[0])
        if _is_inside(address):
            continue
        try:
            return socket.create_connection((address, port), timeout=_WITHIN_S)
        except OSError as error:
            refused = error
    raise refused


def go_out(connection: socket.socket, dial: Dial = dial) -> None:
    """One request: a tunnel for `CONNECT`, or a forwarded plain HTTP request."""
    head, rest = _head(connection)
    verb, target, *_ = (*head.partition(b"\r\n")[0].decode("latin-1").split(" "), "", "")
    place = urlsplit(f"//{target}" if verb == "CONNECT" else target)
    try:
        there = dial(place.hostname or "", place.port or 80)
    except PermissionError as error:
        connection.sendall(_answer("403 Forbidden", str(error)))
        return
    except (OSError, ValueError) as error:
        connection.sendall(_answer("502 Bad Gateway", str(error)))
        return
    with there:
        there.settimeout(None)
        if verb == "CONNECT":
            connection.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            path = place._replace(scheme="", netloc="").geturl() or "/"
            there.sendall(_rewritten(head, verb, path))
        there.sendall(rest)
        join(connection, there)


def _head(connection: socket.socket) -> tuple[bytes, bytes]:
    data = b""
    while b"\r\n\r\n" not in data and len(data) < _LARGEST_HEAD:
        more = connection.recv(_LARGEST_HEAD)
        if not more:
            raise ConnectionError("empty request")
        data += more
    head, _, rest = data.partition(b"\r\n\r\n")
    return head, rest


def _rewritten(head: bytes, verb: str, path: str) -> bytes:
    """For this server only: the next request may be for another one."""
    lines = [line for line in head.split(b"\r\n")[1:] if not line.lower().startswith((b"proxy-", b"connection:"))]
    first = f"{verb} {path} HTTP/1.1".encode("latin-1")
    return b"\r\n".join([first, *lines, b"Connection: close", b"", b""])


def _answer(status: str, why: str) -> bytes:
    body = f"{why}\n".encode()
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body


def _is_inside(text: str) -> bool:
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
        address = address.ipv4_mapped
    return address.is_loopback or address.is_link_local or address.is_unspecified or address.is_multicast


_AT_ONCE = 1 << 20


def relay_to(port: int, connection: socket.socket) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=10.0) as host:
        host.settimeout(None)
        join(connection, host)


def join(one: socket.socket, other: socket.socket) -> None:
    """Until both sides have finished. Bytes stay in the kernel."""
    back = threading.Thread(target=_pump, args=(other, one), daemon=True, name="relay")
    back.start()
    _pump(one, other)
    back.join()


def _pump(source: socket.socket, target: socket.socket) -> None:
    read, write = os.pipe2(os.O_CLOEXEC)
    try:
        while count := os.splice(source.fileno(), write, _AT_ONCE):
            while count:
                count -= os.splice(read, target.fileno(), count)
        target.shutdown(socket.SHUT_WR)
    except OSError:  # one side is gone, so the other is closed too
        for side in (source, target):
            with suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)
    finally:
        os.close(read)
        os.close(write)


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
