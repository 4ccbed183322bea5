"""The remote shell between the nodes of a gang, for launchers that need one: through the agents, without sshd.

A node that expects a command listens for one call. The caller proves that it knows the secret of the attempt, which the
agents have from the store; the secret itself is never sent. The connection lasts as long as the command.

Under which addresses this machine can be reached, and whether another one can.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import ipaddress
import json
import os
import queue
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from stoker.model.orders import Orders

LOOPBACK = "127.0.0.1"
_TRY_S = 2.0  # for one address to answer
MARK_BYTES = 32
_SIOCGIFADDR = 0x8915  # of Linux: the address of an interface


def mine() -> list[str]:
    """The likeliest first: that of the way out, then the others, and the one that never leaves this machine."""
    found = [_way_out(), *_by_kernel(), *_by_name()]
    usable = dict.fromkeys(one for one in found if one and not _is_useless(one))
    return [*usable, LOOPBACK]


def interface_to(address: str) -> str:
    """The name of the interface on the way to a peer, or of the one that has this address; empty: it is unknown."""
    return _interface_of(_source(address))


def _interface_of(own: str) -> str:
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # it has no address
                told = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                if socket.inet_ntoa(told[20:24]) == own:
                    return name
    return ""


def _way_out() -> str:
    return _source("192.0.2.1")  # an address that is for documents alone


def _source(address: str) -> str:
    """Nothing is sent: the kernel only says which address it would send from."""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((address, 9))
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
    """Where a node can be reached until the others have tried. A caller is told which attempt it is: the same
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
            # A peer reads at once; a caller that does not read is not waited for.
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


_NONCE_BYTES = 32
_PROOF_BYTES = 32
_LENGTH_BYTES = 4
_MOST_BYTES = 1 << 16  # of a command
_MOST_WAITING = 64  # calls that are not accepted yet
_HELLO_S = 20.0  # for either side to say what it wants
_LEAST_S = 0.001  # 0 would mean: do not wait
_ALIVE_S = 5  # seconds between signs of life of the other machine


class CommandDoor(Doorbell):
    """Answers as a doorbell does, and accepts one command from a caller that proves that it is of this attempt."""

    def __init__(self, orders: Orders) -> None:
        self._calls: queue.Queue[_Call] = queue.Queue(_MOST_WAITING)
        super().__init__(orders)

    def greet(self, caller: socket.socket) -> None:
        threading.Thread(target=self._listen, args=(caller,), name="remote-shell", daemon=True).start()

    def take(self, secret: str, pause: Callable[[], None]) -> tuple[str, int]:
        """The first command with a valid proof, and its connection. Listens no longer. `pause` waits, and raises where
        nobody should wait any more."""
        while True:
            try:
                call = self._calls.get_nowait()
            except queue.Empty:
                pause()
                continue
            if hmac.compare_digest(call.proof, _proof(secret, call.nonce, call.command)):
                self.close()
                return call.command.decode(), call.line.detach()
            call.line.close()

    def _listen(self, caller: socket.socket) -> None:
        nonce = os.urandom(_NONCE_BYTES)
        try:
            caller.sendall(self._mark + nonce)
            caller.settimeout(_HELLO_S)
            proof = exactly(caller, _PROOF_BYTES)
            size = int.from_bytes(exactly(caller, _LENGTH_BYTES), "big")
            if size > _MOST_BYTES:
                raise OSError("the command is too long")
            command = exactly(caller, size)
            caller.settimeout(None)
            _stay_alive(caller)
            self._calls.put_nowait(_Call(caller, nonce, proof, command))
        except (OSError, queue.Full):
            caller.close()


class _Call:
    def __init__(self, line: socket.socket, nonce: bytes, proof: bytes, command: bytes) -> None:
        self.line, self.nonce, self.proof, self.command = line, nonce, proof, command


def call(peers: Path, host: str, command: str) -> int:
    """Runs a command on another node: the exit code, or 1 where that is lost. Errors are printed."""
    try:
        known = json.loads(peers.read_bytes())
        address, port = known["hosts"][host]
        with socket.create_connection((address, port), timeout=_HELLO_S) as line:
            nonce = exactly(line, MARK_BYTES + _NONCE_BYTES)[MARK_BYTES:]
            words = command.encode()
            line.sendall(_proof(known["secret"], nonce, words) + len(words).to_bytes(_LENGTH_BYTES, "big") + words)
            line.settimeout(None)
            _stay_alive(line)
            answer = b""
            while piece := line.recv(64):
                answer += piece
        return int(answer)
    except (OSError, ValueError, KeyError) as error:
        print(f"stoker: lost the connection to {host}: {error}", file=sys.stderr)  # noqa: T201  # a program's error
        return 1


def _proof(secret: str, nonce: bytes, command: bytes) -> bytes:
    return hmac.new(secret.encode(), nonce + command, hashlib.sha256).digest()


def exactly(line: socket.socket, size: int) -> bytes:
    """Raises OSError where there is less, or where all of it takes longer than the time-out of the connection."""
    patience_s = line.gettimeout()
    until = None if patience_s is None else time.monotonic() + patience_s
    found = bytearray(size)
    rest = memoryview(found)
    try:
        while rest:
            if until is not None:
                line.settimeout(max(until - time.monotonic(), _LEAST_S))
            count = line.recv_into(rest)
            if not count:
                raise ConnectionError("the other side has hung up")
            rest = rest[count:]
            if rest and until is not None and time.monotonic() > until:
                raise TimeoutError("the other side is too slow")
    finally:
        line.settimeout(patience_s)
    return bytes(found)


def _stay_alive(line: socket.socket) -> None:
    """A machine that is gone says nothing, so it is asked."""
    with suppress(OSError, AttributeError):
        line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _ALIVE_S)
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _ALIVE_S)
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
