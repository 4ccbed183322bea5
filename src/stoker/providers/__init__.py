"""How nodes are had: one file or small package per provider, behind one Protocol. Nothing elsewhere names one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Protocol, cast

from stoker.model.node.node import Features, Need, NodeRequest, NodeSight, Offer
from stoker.model.node.visit import Entrance, Said
from stoker.model.workspace.home import Home


class Provider(Protocol):
    @property
    def features(self) -> Features: ...

    def offers(self, need: Need) -> list[Offer]:
        """What could be had, with its price. Spends nothing."""
        ...

    def start(self, request: NodeRequest) -> None:
        """Idempotent by `request.key`; returns before the node is ready."""
        ...

    def look(self) -> list[NodeSight]:
        """Everything tagged ours, as the provider sees it now."""
        ...

    def stop(self, key: str) -> None:
        """Releases everything under the key, leaving no process behind. Twice, or unknown, is fine."""
        ...


class Leased(Provider, Protocol):
    """A provider whose nodes have leases, as `features.lease_s` says."""

    def renew(self, key: str, lease_s: float) -> None:
        """Writes on the node that a lease begins now, for whoever finds it when its server is gone."""
        ...


def leased(provider: Provider) -> Leased | None:
    return cast(Leased, provider) if provider.features.lease_s else None


class Reachable(Provider, Protocol):
    """A provider that lets people in to its nodes, as `features.reachable` says."""

    def entrance(self, key: str) -> Entrance:
        """How to get to a node that is up. Raises Conflict, with what to set, where nobody does."""
        ...

    def command(self, key: str, words: Sequence[str]) -> Said:
        """Runs a command where the script runs by the provider's own means, for a node whose agent does not answer."""
        ...


def reachable(provider: Provider) -> Reachable | None:
    return cast(Reachable, provider) if provider.features.reachable else None


@dataclass(frozen=True, slots=True)
class Setup:
    """What a provider is made from. `slots` limits nodes that share this computer; None: one per core. `server` is the
    mark by which a server knows its own nodes among those of others."""

    home: Home
    slots: int | None = None
    server: str = ""


def load(setup: Setup) -> dict[str, Provider]:
    """Every installed provider, by the name of its entry point."""
    return {entry.name: entry.load()(setup) for entry in entry_points(group="stoker.providers")}
