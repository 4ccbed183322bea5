"""Sockets of machines: listeners that can be closed, and the way out through a proxy."""

from __future__ import annotations

import ipaddress
import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import urlsplit

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
