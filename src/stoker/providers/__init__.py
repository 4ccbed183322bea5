"""Where nodes come from: one file or small package per provider, behind one Protocol. Nothing elsewhere names one."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Protocol, cast

from stoker.containers import EngineSight
from stoker.model.node import Entrance, Features, Need, NodeRequest, NodeSight, Offer, Pool, Said
from stoker.model.workspace.home import Home
from stoker.stores.access import Access, Credential


class Provider(Protocol):
    @property
    def features(self) -> Features: ...

    def offers(self, need: Need) -> list[Offer]:
        """What is available for this need, with prices. Costs nothing."""
        ...

    def start(self, request: NodeRequest) -> None:
        """Idempotent by `request.key`; returns before the node is ready."""
        ...

    def look(self) -> list[NodeSight]:
        """Every node tagged as ours, in the state that the provider reports now."""
        ...

    def stop(self, key: str) -> None:
        """Releases everything under the key and leaves no process running. Calling it twice, or for an unknown key, is
        fine."""
        ...


class Leased(Provider, Protocol):
    """A provider whose nodes have leases; see `features.lease_s`."""

    def renew(self, key: str, lease_s: float) -> None:
        """Records on the node that a lease starts now, so that anyone can clean up after a server that is gone."""
        ...


def leased(provider: Provider) -> Leased | None:
    return cast(Leased, provider) if provider.features.lease_s else None


class Reachable(Provider, Protocol):
    """A provider that supports ssh and commands on its nodes; see `features.reachable`."""

    def entrance(self, key: str) -> Entrance:
        """How to connect to a running node. Raises Conflict, with the setting to change, where that is not possible."""
        ...

    def command(self, key: str, words: Sequence[str]) -> Said:
        """Runs a command next to the script by the provider's own means, for a node whose agent does not answer."""
        ...


def reachable(provider: Provider) -> Reachable | None:
    return cast(Reachable, provider) if provider.features.reachable else None


class Carrying(Provider, Protocol):
    """A provider whose connections carry what its nodes read and write in folders of this computer; see
    `features.carries_folders`."""

    def carried(self, key: str, access: Access) -> Access:
        """The access of the node with this key, as the node can use it."""
        ...


def carrying(provider: Provider) -> Carrying | None:
    return cast(Carrying, provider) if provider.features.carries_folders else None


class Surveyed(Provider, Protocol):
    """A provider that can ask for the container engines of its nodes before a run; see `features.surveyed`."""

    def engines(self, image: str, pool: Pool | None) -> list[EngineSight] | None:
        """The best one first; see `containers.survey`. None: unknown, because no node answers."""
        ...


def surveyed(provider: Provider) -> Surveyed | None:
    return cast(Surveyed, provider) if provider.features.surveyed else None


@dataclass(frozen=True, slots=True)
class KeptData:
    """`url` is where its files are, in the store `place`."""

    url: str
    name: str  # of the store, for people
    place: str
    credential: Credential | None = None  # only reads there, and may expire; None: the provider has none to give


class Keeping(Provider, Protocol):
    """A provider with data that a job can name; see `features.keeps`. `offers` refuses an environment that it does not
    have."""

    def data(self, name: str) -> KeptData:
        """`name` is `NAME@VERSION`. Raises NotFound."""
        ...


def keeping(provider: Provider) -> Keeping | None:
    return cast(Keeping, provider) if provider.features.keeps else None


def surroundings(more: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process that a provider starts on this computer: the server's own, and these."""
    return {**os.environ, **more}


@dataclass(frozen=True, slots=True)
class Setup:
    """The settings of a provider. `slots` limits the nodes on this computer; None: one per core. `server` is the tag by
    which a server recognises its own nodes."""

    home: Home
    slots: int | None = None
    server: str = ""


def load(setup: Setup) -> dict[str, Provider]:
    """Every installed provider, by the name of its entry point."""
    return {entry.name: entry.load()(setup) for entry in entry_points(group="stoker.providers")}
