"""Under which addresses this machine can be reached, and whether another one can."""

from __future__ import annotations

import hashlib
import ipaddress
import socket
import struct
import threading
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from stoker.model.node.orders import Orders

LOOPBACK = "127.0.0.1"
_TRY_S = 2.0  # for one address to answer
MARK_BYTES = 32


def mine() -> list[str]:
    """The likeliest first: that of the way out, then the others, and the one that never leaves this machine."""
    found = [_way_out(), *_by_kernel(), *_by_name()]
    usable = dict.fromkeys(one for one in found if one and not _is_useless(one))
    return [*usable, LOOPBACK]


def _way_out() -> str:
    """Nothing is sent: the kernel only says which address it would send from."""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # an address that is for documents alone
        return str(probe.getsockname()[0])
    return ""


def _by_kernel() -> list[str]:
    """IPv4 addresses of all interfaces, as Linux lists them."""
    with suppress(OSError):
        lines = Path("/proc/net/fib_trie").read_text().splitlines()
        pairs = pairwise(lines)
        return [above.split()[-1] for above, line in pairs if "/32 host LOCAL" in line]
    return []


def _by_name() -> list[str]:
    with suppress(OSError):
        return [str(one[4][0]) for one in socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)]
    return []


def _is_useless(address: str) -> bool:
    try:
        known = ipaddress.ip_address(address)
    except ValueError:
        return True
    return known.is_loopback or known.is_link_local or known.is_unspecified


class Doorbell:
    """Where a node can be reached until the others have tried. Whoever knocks hears which attempt it is: the same
    address may lead to another machine elsewhere."""

    def __init__(self, orders: Orders) -> None:
        self._mark = _mark(orders)
        self._socket = socket.create_server(("", 0), backlog=orders.nodes + 8)
        self.port: int = self._socket.getsockname()[1]
        threading.Thread(target=self._answer, name="doorbell", daemon=True).start()

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _answer(self) -> None:
        while True:
            try:
                caller, _ = self._socket.accept()
            except OSError:
                return
            # A peer hears at once; whoever does not listen is not waited for.
            caller.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 1, 0))
            self.greet(caller)

    def greet(self, caller: socket.socket) -> None:
        with caller, suppress(OSError):
            caller.sendall(self._mark)


def reaching(addresses: Sequence[str], port: int, orders: Orders, *, one: bool = False) -> list[str]:
    """Those under which a node of this attempt answers. On the same machine the loopback is enough. `one`: any of
    them will do."""
    found = []
    for address in sorted(addresses, key=lambda address: address != LOOPBACK):
        if _answers(address, port, _mark(orders)):
            found.append(address)
            if one or address == LOOPBACK:
                break
    return found


def _answers(address: str, port: int, mark: bytes) -> bool:
    with suppress(OSError), socket.create_connection((address, port), timeout=_TRY_S) as line:
        heard = b""
        while len(heard) < MARK_BYTES and (piece := line.recv(MARK_BYTES - len(heard))):
            heard += piece
        return heard == mark
    return False


def free_ports(count: int) -> list[int]:
    """Different ones, free a moment ago."""
    probes = [socket.create_server(("", 0)) for _ in range(count)]
    try:
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def _mark(orders: Orders) -> bytes:
    return hashlib.sha256(f"{orders.run_id}/{orders.attempt}".encode()).digest()
