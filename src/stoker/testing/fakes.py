"""Fakes for tests: a provider whose nodes are entries in a dictionary, and a store in memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from decimal import Decimal
from typing import BinaryIO, ClassVar

from stoker.errors import AlreadyThere, Missing, StoreFailed
from stoker.model.node import Features, Need, NodeRequest, NodeSight, NodeState, Offer
from stoker.stores import Store, Stored


class FakeProvider:
    features: ClassVar[Features] = Features(look_every_s=0.01)

    def __init__(self, nodes: dict[str, NodeState] | None = None) -> None:
        self.nodes = {} if nodes is None else nodes  # the cloud; two providers may share one
        self.started: list[NodeRequest] = []

    def offers(self, need: Need) -> list[Offer]:
        return [Offer("fake", "one size", "nowhere", Decimal("0.10"), slots=need.nodes)]

    def start(self, request: NodeRequest) -> None:
        if request.key not in self.nodes:
            self.nodes[request.key] = NodeState.UP
            self.started.append(request)

    def look(self) -> list[NodeSight]:
        return [NodeSight(key, state) for key, state in self.nodes.items()]

    def stop(self, key: str) -> None:
        self.nodes.pop(key, None)

    def kill(self, key: str) -> None:
        """Evicts the machine."""
        self.nodes[key] = NodeState.GONE


class RestoringFakeProvider(FakeProvider):
    """An evicted node is seen as gone once, and is then restored from the same request."""

    features: ClassVar[Features] = Features(look_every_s=0.01, restores=True)

    def look(self) -> list[NodeSight]:
        sights = super().look()
        for key in [sight.key for sight in sights if sight.state is NodeState.GONE]:
            self.nodes[key] = NodeState.UP
            self.started += [next(one for one in self.started if one.key == key)]
        return sights


class MemoryStore(Store):
    def __init__(self, url: str = "memory:") -> None:
        self.url = url
        self._lock = threading.Lock()
        self._objects: dict[str, tuple[bytes, float]] = {}  # with the time of the last change

    @property
    def near(self) -> bool:
        """With another URL it stands for a store over a network."""
        return self.url.startswith("memory:")

    def get(self, key: str, start: int = 0, size: int | None = None) -> bytes:
        with self._lock:
            if _checked(key) not in self._objects:
                raise Missing(f"`{key}` not found in the store")
            data, _ = self._objects[key]
        return data[start:] if size is None else data[start : start + size]

    def put(self, key: str, data: bytes | BinaryIO, *, only_new: bool = False) -> None:
        whole = data if isinstance(data, bytes) else data.read()
        with self._lock:
            if only_new and key in self._objects:
                raise AlreadyThere(f"`{key}` already exists in the store")
            self._objects[_checked(key)] = (whole, time.time())

    def append(self, key: str, offset: int, data: bytes) -> int:
        with self._lock:
            there, _ = self._objects.get(_checked(key), (b"", 0.0))
            if offset > len(there):
                raise StoreFailed(f"`{key}` has {len(there)} bytes, cannot append at {offset}")
            grown = there + data[len(there) - offset :]
            self._objects[key] = (grown, time.time())
            return len(grown)

    def list(self, prefix: str) -> Iterator[Stored]:
        below = f"{_checked(prefix.removesuffix('/'))}/" if prefix else ""
        with self._lock:
            objects = list(self._objects.items())
        for key, (data, changed_at) in objects:
            if key.startswith(below):
                yield Stored(key, len(data), changed_at, f"{hash(data):x}")

    def delete(self, key: str) -> None:
        with self._lock:
            self._objects.pop(_checked(key), None)


def _checked(key: str) -> str:
    if "\0" in key or any(part in ("", ".", "..") for part in key.split("/")):
        raise StoreFailed(f"`{key}` is not a key")
    return key
