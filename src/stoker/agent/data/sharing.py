"""Passes contents of datasets on between the nodes of a gang, so that each is read from a far store about once.

Every content belongs to one node, by its hash: that node reads it from the store, and the others ask that node. One
that cannot be reached, takes too long or is slower than the store is not asked. What it sends is verified by its hash,
like everything else. A node sends only contents that this attempt needs, to callers that know its secret: the nodes
have each other's secrets from the store.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from stoker.agent.attempt.gang import Channel
from stoker.agent.data.cache import Cache
from stoker.agent.processes.remote import exactly, mine
from stoker.errors import StokerError
from stoker.model.run.report import SharePoint

_MARK_BYTES = _NONCE_BYTES = _PROOF_BYTES = _HASH_BYTES = 32
_NUMBER_BYTES = 8
_HAS, _HAS_NOT = b"1", b"0"
_AT_ONCE = 16  # callers; others wait in line
_LINE = 1024
_CONNECT_S = 2.0
_GREETING_S = 5.0  # in line, too
_TRANSFER_S = 20.0  # for one request, as long as nothing tells how fast the store is
_TRANSFER_LEAST_S = 5.0
_POLL_S = 0.05  # between two questions for the same content
_LOOK_S = 1.0  # between two looks for where a node can be asked
_PATIENCE_S = 2.0  # the least that a node gets to read its own contents
_MOST_FAILURES = 2  # in a row
_SAMPLES = 8  # transfers, before two rates are compared


class ContentDoor:
    """Where other nodes ask this one for contents."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self.secret = os.urandom(32)
        self._allowed: set[str] = set()
        self._socket = socket.create_server(("", 0), backlog=_LINE)
        self.port: int = self._socket.getsockname()[1]
        for _ in range(_AT_ONCE):
            threading.Thread(target=self._listen, name="contents", daemon=True).start()

    def allow(self, hashes: Iterable[str]) -> None:
        """The cache also has contents of other runs: those are not sent."""
        self._allowed.update(hashes)

    def close(self) -> None:
        """Calling it twice is fine."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _listen(self) -> None:
        while True:
            try:
                caller, _ = self._socket.accept()
            except OSError:
                return
            with caller, suppress(OSError):
                self._serve(caller)

    def _serve(self, caller: socket.socket) -> None:
        caller.settimeout(_GREETING_S)
        nonce = os.urandom(_NONCE_BYTES)
        caller.sendall(greeting(self.secret) + nonce)
        proof = exactly(caller, _PROOF_BYTES)
        request = exactly(caller, _HASH_BYTES + 2 * _NUMBER_BYTES)
        caller.settimeout(_TRANSFER_S)
        if hmac.compare_digest(proof, proof_of(self.secret, nonce, request)):
            self._send(caller, request)

    def _send(self, caller: socket.socket, request: bytes) -> None:
        sha256, numbers = request[:_HASH_BYTES].hex(), request[_HASH_BYTES:]
        start, size = int.from_bytes(numbers[:_NUMBER_BYTES], "big"), int.from_bytes(numbers[_NUMBER_BYTES:], "big")
        path = self._holds(sha256, start + size) if sha256 in self._allowed else None
        if path is None:
            caller.sendall(_HAS_NOT)
            return
        with path.open("rb") as file:
            caller.sendall(_HAS)
            caller.sendfile(file, start, size)

    def _holds(self, sha256: str, until: int) -> Path | None:
        """Also a part of it that is being downloaded: the receiver verifies the whole."""
        for path in (Path(self._cache.object(sha256)), self._cache.parts / sha256):
            with suppress(OSError):
                if path.stat().st_size >= until:
                    return path
        return None


@dataclass
class _Rate:
    seconds: float = 0.0
    size_bytes: int = 0
    count: int = 0

    def add(self, size_bytes: int, seconds: float) -> None:
        self.seconds, self.size_bytes, self.count = (
            self.seconds + seconds,
            self.size_bytes + size_bytes,
            self.count + 1,
        )

    @property
    def bytes_per_s(self) -> float:
        return self.size_bytes / max(self.seconds, 1e-9)


@dataclass
class _Peer:
    number: int
    point: SharePoint | None = None
    address: str = ""  # under which it answered
    looked_at: float = float("-inf")
    failures: int = 0
    refusals: int = 0  # in a row: it has not what belongs to this node either
    late: bool = False  # it is asked, but not waited for
    rate: _Rate = field(default_factory=_Rate)

    @property
    def deaf(self) -> bool:
        return self.failures >= _MOST_FAILURES


class Peers:
    """The other nodes, as sources of contents. Any thread may ask."""

    def __init__(self, channel: Channel, cache: Cache, check: Callable[[], None]) -> None:
        """`check` raises when the wait should end."""
        self._channel = channel
        self._check = check
        self._door = ContentDoor(cache)
        self._peers = {number: _Peer(number) for number in range(channel.nodes) if number != channel.node}
        self._store = _Rate()
        self._began = time.monotonic()
        self._told = False
        self._lock = threading.Lock()

    def begin(self, hashes: Iterable[str]) -> None:
        """Tells the other nodes where these contents can be asked for. A store that fails costs only the sharing."""
        self._began = time.monotonic()
        self._door.allow(hashes)
        if not self._told:
            point = SharePoint(self._channel.node, tuple(mine()), self._door.port, self._door.secret.hex())
            with suppress(StokerError):
                self._channel.tell("share", point)
                self._told = True

    def close(self) -> None:
        self._door.close()

    def is_mine(self, sha256: str) -> bool:
        return self._owner(sha256) == self._channel.node

    def read(self, size_bytes: int, seconds: float) -> None:
        """So long a request to the store took."""
        with self._lock:
            self._store.add(size_bytes, seconds)

    def get(self, sha256: str, start: int, size: int) -> bytes | None:
        """None: read it from the store."""
        if self.is_mine(sha256):
            return self._from_survivor(sha256, start, size)
        peer = self._peers[self._owner(sha256)]
        waits_until = self._waits_until()
        while self._worth(peer):
            data = self._ask(peer, sha256, start, size)
            if data is not None or peer.late:
                return data
            if time.monotonic() >= waits_until:
                peer.late = True
                return None
            self._check()
            time.sleep(_POLL_S)
        return None

    def blame(self, sha256: str) -> None:
        """What the other nodes sent of this content is wrong."""
        for peer in self._peers.values():
            if peer.number == self._owner(sha256) or self.is_mine(sha256):
                peer.failures = _MOST_FAILURES

    def _owner(self, sha256: str) -> int:
        return int(sha256[:8], 16) % self._channel.nodes

    def _waits_until(self) -> float:
        """Another node gets about as long for its contents as this one took for its own, which it read first."""
        now = time.monotonic()
        return now + max(now - self._began, _PATIENCE_S)

    def _from_survivor(self, sha256: str, start: int, size: int) -> bytes | None:
        """This node's own content, from a node that has it from an earlier attempt. Where there is none, that soon
        shows."""
        peer = self._peers[(self._channel.node + 1) % self._channel.nodes]
        if peer.refusals >= _SAMPLES or not self._worth(peer):
            return None
        data = self._ask(peer, sha256, start, size)
        peer.refusals = peer.refusals + 1 if data is None else 0
        return data

    def _worth(self, peer: _Peer) -> bool:
        """It may answer, and is not clearly slower than the store."""
        if peer.deaf:
            return False
        measured = min(peer.rate.count, self._store.count) >= _SAMPLES
        return not measured or peer.rate.bytes_per_s >= self._store.bytes_per_s / 2

    def _ask(self, peer: _Peer, sha256: str, start: int, size: int) -> bytes | None:
        """None: it has not got that, or cannot be asked."""
        point = self._point(peer)
        if point is None:
            return None
        began = time.monotonic()
        try:
            data = self._request(peer, point, sha256, start, size)
        except (OSError, ValueError):
            with self._lock:
                peer.failures += 1
            return None
        with self._lock:
            peer.failures = 0
            if data is not None:
                peer.rate.add(size, time.monotonic() - began)
        return data

    def _point(self, peer: _Peer) -> SharePoint | None:
        with self._lock:
            due = peer.point is None and time.monotonic() >= peer.looked_at + _LOOK_S
            peer.looked_at = time.monotonic() if due else peer.looked_at
        if due:
            with suppress(StokerError):
                peer.point = self._channel.read(SharePoint, "share", peer.number)
        return peer.point

    def _request(self, peer: _Peer, point: SharePoint, sha256: str, start: int, size: int) -> bytes | None:
        secret = bytes.fromhex(point.secret)
        line, nonce = self._connected(peer, point, secret)
        with line:
            line.settimeout(self._transfer_s(size))
            numbers = start.to_bytes(_NUMBER_BYTES, "big") + size.to_bytes(_NUMBER_BYTES, "big")
            request = bytes.fromhex(sha256) + numbers
            line.sendall(proof_of(secret, nonce, request) + request)
            if exactly(line, 1) != _HAS:
                return None
            return exactly(line, size)

    def _transfer_s(self, size: int) -> float:
        """A node that needs longer is slower than the store, however long it takes to show."""
        with self._lock:
            measured = self._store.count >= _SAMPLES
            return max(_TRANSFER_LEAST_S, 2 * size / self._store.bytes_per_s) if measured else _TRANSFER_S

    def _connected(self, peer: _Peer, point: SharePoint, secret: bytes) -> tuple[socket.socket, bytes]:
        """The same address may lead to another machine elsewhere: whoever answers shows that it is the right one."""
        for address in [peer.address] if peer.address else point.addresses:
            with suppress(OSError):
                line = socket.create_connection((address, point.port), timeout=_CONNECT_S)
                line.settimeout(_GREETING_S)
                with suppress(OSError):
                    if exactly(line, _MARK_BYTES) == greeting(secret):
                        nonce = exactly(line, _NONCE_BYTES)
                        peer.address = address
                        return line, nonce
                line.close()
        raise ConnectionError(f"node {peer.number} does not answer")


def greeting(secret: bytes) -> bytes:
    return hmac.new(secret, b"contents", hashlib.sha256).digest()


def proof_of(secret: bytes, nonce: bytes, request: bytes) -> bytes:
    return hmac.new(secret, nonce + request, hashlib.sha256).digest()
