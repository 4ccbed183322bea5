"""The proxy by which machines reach the outside: what it passes on, and what it refuses."""

import socket
import threading
from contextlib import suppress
from typing import Any

import pytest

from stoker.twin.machines.outward import dial, go_out


class Outside:
    """A server of the outside world, and how far a machine gets."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []
        self.machine, twins = socket.socketpair()
        self.server, self._there = socket.socketpair()
        threading.Thread(target=self._go_out, args=(twins,), daemon=True).start()

    def _go_out(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):  # a test may be over before everything was read
            go_out(connection, self._dial)

    def _dial(self, host: str, port: int) -> socket.socket:
        self.asked.append((host, port))
        if host == "gone.example":
            raise OSError("no such host")
        return self._there if host != "me.example" else dial("127.0.0.1", port)


@pytest.fixture
def outside() -> Any:
    made = Outside()
    yield made
    made.machine.close()
    made.server.close()


def test_a_tunnel_passes_bytes_both_ways(outside: Outside) -> None:
    outside.machine.sendall(b"CONNECT pypi.example:443 HTTP/1.1\r\nHost: pypi.example\r\n\r\nhello")
    assert outside.machine.recv(100) == b"HTTP/1.1 200 Connection established\r\n\r\n"
    assert outside.server.recv(100) == b"hello"
    outside.server.sendall(b"welcome")
    assert outside.machine.recv(100) == b"welcome"
    assert outside.asked == [("pypi.example", 443)]
    outside.machine.shutdown(socket.SHUT_WR)
    assert outside.server.recv(100) == b""


def test_a_plain_request_is_passed_on_as_the_server_expects_it(outside: Outside) -> None:
    lines = b"Host: a.example:81\r\nProxy-Connection: keep-alive\r\nX-Y: z"
    outside.machine.sendall(b"GET http://a.example:81/simple/?q=1 HTTP/1.1\r\n" + lines + b"\r\n\r\n")
    asked = outside.server.recv(1000)
    assert asked == b"GET /simple/?q=1 HTTP/1.1\r\nHost: a.example:81\r\nX-Y: z\r\nConnection: close\r\n\r\n"
    assert outside.asked == [("a.example", 81)]


@pytest.mark.parametrize(("host", "status"), [("gone.example", b"502"), ("me.example", b"403")])
def test_what_cannot_be_reached_is_reported(outside: Outside, host: str, status: bytes) -> None:
    outside.machine.sendall(f"CONNECT {host}:443 HTTP/1.1\r\n\r\n".encode())
    assert outside.machine.recv(1000).split()[1] == status


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "127.9.9.9", "0.0.0.0", "169.254.169.254", "::1", "::ffff:127.0.0.1"]
)
def test_the_host_itself_is_not_outside(host: str) -> None:
    with pytest.raises(PermissionError):
        dial(host, 80)
