"""A provider whose nodes are entries in a dictionary: for tests that need one without processes."""

from __future__ import annotations

from decimal import Decimal
from typing import ClassVar

from stoker.model.node.node import Features, Need, NodeRequest, NodeSight, NodeState, Offer


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
