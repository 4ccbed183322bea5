"""What a server has besides runs, for programs: clusters, costs, limits, stores, nodes, and what can be removed."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import quote

from stoker.client.api.connection import Connection
from stoker.client.settings import ClientSettings
from stoker.model import wire
from stoker.model.job.job import Job
from stoker.model.node import Cluster, ClusterState, ListedNode, NodeListing
from stoker.model.run.money import Costs, LimitState, Period
from stoker.model.run.receipt import Forecast
from stoker.model.run.run import PruneRule, Run, RunSizes, Sizes, Spared
from stoker.model.workspace.store import KnownStore, StoreFinding
from stoker.stores.access import Access
from stoker.stores.kinds import CredentialForm, kind_of, kinds
from stoker.stores.trees.clearing import remove_unused, unused

__all__ = ["Added", "CredentialForm", "Stores", "credential_forms"]


_OFFERS_S = 180.0  # clouds list sizes slowly
_OF_THE_SERVER = ("paused", "created_at")  # fields of a cluster that its creation does not choose


class Clusters:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def all(self) -> list[ClusterState]:
        """By name."""
        return [wire.from_plain(ClusterState, row) for row in self._connection.get("/v1/clusters")["clusters"]]

    def create(self, cluster: Cluster) -> ClusterState:
        """Starts nothing: nodes come with the first run."""
        asked = {name: getattr(cluster, name) for name in Cluster.__slots__ if name not in _OF_THE_SERVER}
        return self._state(self._connection.post("/v1/clusters", asked, timeout_s=_OFFERS_S))

    def show(self, name: str) -> ClusterState:
        return self._state(self._connection.get(_cluster_path(name)))

    def resize(
        self, name: str, *, max_nodes: int | None = None, min_nodes: int | None = None, idle: timedelta | None = None
    ) -> ClusterState:
        """What is None stays as it is. Runs keep their nodes; idle nodes beyond the new size are released."""
        idle_s = idle.total_seconds() if idle is not None else None
        asked = {"max_nodes": max_nodes, "min_nodes": min_nodes, "idle_s": idle_s}
        return self._state(self._connection.post(f"{_cluster_path(name)}/resize", asked))

    def pause(self, name: str) -> ClusterState:
        """Nothing starts any more, and idle nodes are released. Runs that have nodes keep them until they end."""
        return self._state(self._connection.post(f"{_cluster_path(name)}/pause"))

    def resume(self, name: str) -> ClusterState:
        return self._state(self._connection.post(f"{_cluster_path(name)}/resume"))

    def remove(self, name: str) -> None:
        """Raises Conflict while a run uses it. Idle nodes are released."""
        self._connection.delete(_cluster_path(name))

    def _state(self, told: object) -> ClusterState:
        return wire.from_plain(ClusterState, told)


def _cluster_path(name: str) -> str:
    return f"/v1/clusters/{quote(name, safe='')}"


def forecast(
    connection: Connection, job: Job, currency: str = "USD", hours: float | None = None, *, both: bool = False
) -> Forecast:
    asked = {"job": job.plain(), "currency": currency, "hours": hours, "both": both}
    told = connection.post("/v1/forecast", asked, timeout_s=_OFFERS_S)
    return wire.from_plain(Forecast, told)


def costs(
    connection: Connection, by: str = "experiment", since: datetime | timedelta | None = None, experiment: str = ""
) -> Costs:
    """`since` may be a time ago. Days are those of this computer."""
    now = datetime.now(UTC)
    moment = now - since if isinstance(since, timedelta) else since
    offset = now.astimezone().utcoffset() or timedelta()
    asked: dict[str, Any] = {"by": by, "zone_min": int(offset.total_seconds() // 60)}
    if moment is not None:
        asked["since"] = moment.astimezone(UTC).isoformat()
    if experiment:
        asked["experiment"] = experiment
    return wire.from_plain(Costs, connection.get("/v1/costs", asked))


# Spending limits, as administrators set them.


class Limits:
    """What people may spend, as an administrator sets it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def all(self) -> list[LimitState]:
        """With how much of each is used."""
        return _read(self._connection.get("/v1/limits"))

    def save(self, period: Period, usd: Decimal | str | float, person: str = "") -> list[LimitState]:
        """Of one person, or of everybody together. Replaces the limit of the same period."""
        asked = {"period": str(period), "usd": str(usd).strip().removeprefix("$"), "person": person}
        return _read(self._connection.post("/v1/limits", asked))

    def remove(self, period: Period, person: str = "") -> list[LimitState]:
        """NotFound if there is none."""
        whose = f"?person={quote(person, safe='')}" if person else ""
        return _read(self._connection.delete(f"/v1/limits/{period}{whose}"))


def _read(told: dict[str, Any]) -> list[LimitState]:
    return [wire.from_plain(LimitState, row) for row in told["limits"]]


_CHECK_S = 120.0  # requests to an unavailable store are retried


@dataclass(frozen=True, slots=True)
class Added:
    """`store` is None if the test failed: then nothing was saved."""

    store: KnownStore | None
    findings: tuple[StoreFinding, ...] = ()


class Stores:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def all(self) -> list[KnownStore]:
        """The folder first, then the others by name."""
        return [wire.from_plain(KnownStore, row) for row in self._connection.get("/v1/stores")["stores"]]

    def add(
        self,
        name: str,
        url: str,
        kind: str = "none",
        values: Mapping[str, str] | None = None,
        *,
        check: bool = True,
        use: bool = False,
        moved_from: str = "",
        shared: bool | None = None,
    ) -> Added:
        """Tests it first, unless `check` is off. The same name and URL again replaces the credential. For a store that
        has moved, give its old URL. With `shared`, remote nodes may get a SAS that cannot be restricted."""
        asked = {"name": name, "url": url, "credential": kind, "values": dict(values or {}), "check": check, "use": use}
        asked |= {"moved_from": moved_from, "shared": shared}
        return wire.from_plain(Added, self._connection.post("/v1/stores", asked, timeout_s=_CHECK_S))

    def check(self, name: str) -> list[StoreFinding]:
        """What works and what does not."""
        told = self._connection.post(f"{_store_path(name)}/check", timeout_s=_CHECK_S)
        return [wire.from_plain(StoreFinding, one) for one in told["findings"]]

    def use(self, name: str) -> KnownStore:
        """New runs are stored there from now on."""
        return wire.from_plain(KnownStore, self._connection.post(f"{_store_path(name)}/use"))

    def remove(self, name: str) -> None:
        """Removes it and its credential; its content stays."""
        self._connection.delete(_store_path(name))

    def access(self, name: str, *, reads: Sequence[str] = (), writes: Sequence[str] = ()) -> Access:
        """Temporary access to a part of a store, for `stoker.stores.opening.open_access`."""
        asked = {"reads": list(reads), "writes": list(writes)}
        return Access.from_text(self._connection.post(f"{_store_path(name)}/access", asked)["access"])


def credential_forms(url: str = "") -> list[CredentialForm]:
    """The credentials that a store with this URL supports; without a URL, those of every kind of store."""
    return [form for kind in ([kind_of(url)] if url else kinds().values()) for form in kind.credentials]


def _store_path(name: str) -> str:
    return f"/v1/stores/{quote(name, safe='')}"


_LOOK_S = 120.0  # clouds respond slowly
_AT_ONCE = 500  # runs per request for sizes


class Nodes:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def look(self, provider: str = "") -> NodeListing:
        """Of all providers, or of one."""
        query = {"provider": provider} if provider else {}
        return wire.from_plain(NodeListing, self._connection.get("/v1/nodes", query, timeout_s=_LOOK_S))

    def all(self) -> list[ListedNode]:
        """Of the providers that could be queried."""
        return list(self.look().nodes)

    def release(self, node: ListedNode) -> None:
        """Only a node that no run needs, or one of another server whose lease has expired; may be repeated."""
        others = "?others=true" if node.server else ""
        self._connection.delete(f"/v1/nodes/{quote(node.key, safe='')}{others}")


@dataclass(frozen=True, slots=True)
class UnusedPackages:
    """Cached packages that no run has used for as long as a rule says."""

    folder: Path
    older_than_s: float
    size_bytes: int

    @classmethod
    def look(cls, settings: ClientSettings, rule: PruneRule) -> UnusedPackages:
        """None of them belongs to one experiment."""
        folder = settings.home.software
        found = {} if rule.experiment else unused(folder, rule.older_than_s, time.time())
        return cls(folder, rule.older_than_s, sum(found.values()))

    def remove(self) -> None:
        if self.size_bytes:
            remove_unused(self.folder, self.older_than_s, time.time())


def remove(connection: Connection, names: Sequence[str]) -> Mapping[str, str]:
    """All or none; returns those with files still stored, and why."""
    told = connection.post("/v1/removals", {"runs": list(names)}, repeat=False, timeout_s=_LOOK_S)
    return dict(told["pending"])


def sizes(connection: Connection, names: Sequence[str]) -> Sizes:
    """Many runs in several requests: each takes time in a store. Code shared between two requests counts twice."""
    runs: dict[str, RunSizes] = {}
    total, home = 0, {}
    for start in range(0, max(len(names), 1), _AT_ONCE):
        asked = {"runs": list(names[start : start + _AT_ONCE])}
        found = wire.from_plain(Sizes, connection.post("/v1/sizes", asked, timeout_s=_LOOK_S))
        runs |= found.runs
        total, home = total + found.total, dict(found.home)
    return Sizes(runs, total, home)


def prunable(connection: Connection, rule: PruneRule) -> tuple[list[Run], list[Spared]]:
    told = connection.post("/v1/prunable", wire.to_plain(rule), timeout_s=_LOOK_S)
    runs = [wire.from_plain(Run, row) for row in told["runs"]]
    return runs, [wire.from_plain(Spared, row) for row in told["spared"]]


def prune_rule(connection: Connection) -> PruneRule | None:
    """The rule by which the server deletes runs every day."""
    told = connection.get("/v1/prune-rule")["rule"]
    return wire.from_plain(PruneRule, told) if told else None


def set_prune_rule(connection: Connection, rule: PruneRule | None) -> None:
    connection.post("/v1/prune-rule", {"rule": wire.to_plain(rule) if rule else None})
