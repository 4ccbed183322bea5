"""The remote shell between the nodes of a gang, for launchers that need one: through the agents, without sshd.

A node that expects a command listens for one call. The caller proves that it knows the secret of the attempt, which the
agents have from the store; the secret itself is never sent. The connection lasts as long as the command.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import queue
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from stoker.agent.gang.addresses import MARK_BYTES, Doorbell
from stoker.model.node.orders import Orders

_NONCE_BYTES = 32
_PROOF_BYTES = 32
_LENGTH_BYTES = 4
_MOST_BYTES = 1 << 16  # of a command
_MOST_WAITING = 64  # calls that nobody has looked at
_HELLO_S = 20.0  # for either side to say what it wants
_ALIVE_S = 5  # seconds between signs of life of the other machine


class CommandDoor(Doorbell):
    """Answers as a doorbell does, and takes one command of whoever can prove to be of this attempt."""

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
            proof = _exactly(caller, _PROOF_BYTES)
            size = int.from_bytes(_exactly(caller, _LENGTH_BYTES), "big")
            if size > _MOST_BYTES:
                raise OSError("the command is too long")
            command = _exactly(caller, size)
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
            nonce = _exactly(line, MARK_BYTES + _NONCE_BYTES)[MARK_BYTES:]
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


def _exactly(line: socket.socket, size: int) -> bytes:
    """Raises OSError where there is less."""
    found = b""
    while len(found) < size:
        piece = line.recv(size - len(found))
        if not piece:
            raise ConnectionError("the other side has hung up")
        found += piece
    return found


def _stay_alive(line: socket.socket) -> None:
    """A machine that is gone says nothing, so it is asked."""
    with suppress(OSError, AttributeError):
        line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _ALIVE_S)
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _ALIVE_S)
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
