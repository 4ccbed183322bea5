"""The clusters of a server, for programs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from urllib.parse import quote

from stoker.client.api.connection import Connection
from stoker.model import wire
from stoker.model.cluster import IDLE_S, ClusterState

_OFFERS_S = 180.0  # clouds list sizes slowly


class Clusters:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def all(self) -> list[ClusterState]:
        """By name."""
        return [wire.from_plain(ClusterState, row) for row in self._connection.get("/v1/clusters")["clusters"]]

    def create(
        self,
        name: str,
        provider: str,
        max_nodes: int,
        *,
        min_nodes: int = 0,
        idle: timedelta = timedelta(seconds=IDLE_S),
        size: str = "",
        region: str = "",
        spot: bool = False,
        settings: Mapping[str, str] | None = None,
        owner: str = "",
    ) -> ClusterState:
        """Starts nothing: nodes come with the first run. `settings` are the provider's own; `owner` pays for idle
        nodes."""
        asked = {"name": name, "provider": provider, "max_nodes": max_nodes, "min_nodes": min_nodes, "size": size}
        asked |= {"idle_s": idle.total_seconds(), "region": region, "spot": spot, "owner": owner}
        asked["settings"] = dict(settings or {})
        return self._state(self._connection.post("/v1/clusters", asked, timeout_s=_OFFERS_S))

    def show(self, name: str) -> ClusterState:
        return self._state(self._connection.get(_path(name)))

    def resize(
        self, name: str, *, max_nodes: int | None = None, min_nodes: int | None = None, idle: timedelta | None = None
    ) -> ClusterState:
        """What is None stays as it is. Runs keep their nodes; idle nodes beyond the new size are released."""
        idle_s = idle.total_seconds() if idle is not None else None
        asked = {"max_nodes": max_nodes, "min_nodes": min_nodes, "idle_s": idle_s}
        return self._state(self._connection.post(f"{_path(name)}/resize", asked))

    def pause(self, name: str) -> ClusterState:
        """Nothing starts any more, and idle nodes are released. Runs that have nodes keep them until they end."""
        return self._state(self._connection.post(f"{_path(name)}/pause"))

    def resume(self, name: str) -> ClusterState:
        return self._state(self._connection.post(f"{_path(name)}/resume"))

    def remove(self, name: str) -> None:
        """Raises Conflict while a run uses it. Idle nodes are released."""
        self._connection.delete(_path(name))

    def _state(self, told: object) -> ClusterState:
        return wire.from_plain(ClusterState, told)


def _path(name: str) -> str:
    return f"/v1/clusters/{quote(name, safe='')}"
