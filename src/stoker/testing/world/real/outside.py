"""The cloud and the store of the world, as the real server sees them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from functools import cache
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from stoker import stores
from stoker.engine.nodes.lease import node_of
from stoker.errors import LoginFailed, Missing, ProviderUnavailable, StoreDenied, StoreFailed, StoreUnavailable
from stoker.model import wire
from stoker.model.node import Features, Lease, Need, NodeRequest, NodeSight, Offer
from stoker.model.orders import Wishes
from stoker.stores import Stored
from stoker.testing.fakes import MemoryStore
from stoker.testing.world.agent import Agent
from stoker.testing.world.cloud import WorldCloud
from stoker.testing.world.gang import Word
from stoker.testing.world.scenario import MishapKind, Timeline, moment

if TYPE_CHECKING:
    from stoker.testing.world.real.world import RealWorld

NEAR_S, SOON_S, LATE_S = 0.4, 1.0, 60.0  # between looks


class WorldProvider:
    """A server looks every second; the world skips rounds in which nothing can be new."""

    def __init__(self, cloud: WorldCloud, timeline: Timeline, features: Features, slots: int | None) -> None:
        self._cloud = cloud
        self._timeline = timeline
        self._features, self._asked_at = features, (-1.0, -1.0)
        self._slots = slots
        self.stirred_at = 0.0
        self._with_pause = cache(lambda pause_s: replace(features, look_every_s=pause_s))

    @property
    def features(self) -> Features:
        if self._asked_at != (moment := (self._timeline.now, self.stirred_at)):
            self._asked_at, self._features = moment, self._paced()
        return self._features

    def _paced(self) -> Features:
        calm_s = self._timeline.now - self.stirred_at
        if self._slots is not None and calm_s < SOON_S:
            return self._with_pause(NEAR_S)
        pause_s = SOON_S
        while pause_s < min(calm_s / 2, LATE_S):
            pause_s *= 2
        return self._with_pause(min(pause_s, LATE_S))

    def offers(self, need: Need) -> list[Offer]:
        self._check()
        if self._slots is not None:
            return [Offer("local", "one size", "here", Decimal(0), slots=self._slots)]
        return self._cloud.offers(need)

    def start(self, request: NodeRequest) -> None:
        self._cloud.start(request.key, node_of(request.key)[0], request.offer, request.fuse, request.lease_s or 0.0)

    def look(self) -> list[NodeSight]:
        return self._cloud.look()

    def stop(self, key: str) -> None:
        self._cloud.stop(key)

    def renew(self, key: str, lease_s: float) -> None:  # noqa: ARG002  # nobody finds the machines later
        self._check()

    def _check(self) -> None:
        if self._cloud.faults[MishapKind.LOGGED_OUT]:
            raise LoginFailed("the login has expired")
        if self._cloud.faults[MishapKind.BLIND] and self._slots is None:
            raise ProviderUnavailable("the provider does not answer")


NEAR, FAR = "file:///world", "/world"  # `stores/__init__.py` tells them apart by these
HUNG_S = 25.0  # until a request to a store that does not answer times out
READ_S = 1.0  # until an agent sees what was written for it: it is at most as old as its last look

_OF_RUN = re.compile(r"runs/(?P<run>[^/]+)/")
_OF_ATTEMPT = re.compile(
    r"runs/(?P<run>[^/]+)/attempts/(?P<number>\d+)/(?:node-(?P<node>\d+)/)?(?P<what>orders|lease|report|wishes)\.json"
)


class StoredReport(NamedTuple):
    agent: Agent
    beat: int
    news: tuple[object, ...]
    data: bytes


class WorldStore(MemoryStore):
    """As the server sees it, with the faults that affect the server."""

    def __init__(self, world: RealWorld, url: str) -> None:
        super().__init__(url)
        self._world = world
        self.takes: Callable[[float], None] = lambda _: None  # adds seconds to the current call
        self._written: dict[str, StoredReport] = {}  # by node key: its newest report

    def get(self, key: str, start: int = 0, size: int | None = None) -> bytes:
        self._check()
        if (agent := self._reporter(key)) is None:
            return super().get(key, start, size)
        data = self._report_of(agent)
        if data is None:
            raise Missing(f"`{key}` not found in the store")
        return data[start:] if size is None else data[start : start + size]

    def put(self, key: str, data: bytes | BinaryIO, *, only_new: bool = False) -> None:
        self._check()
        found = _OF_RUN.match(key)
        shelf = self._world.shelves.get(found["run"]) if found else None
        if shelf and shelf.full:
            raise StoreFailed("no space is left in the store")
        super().put(key, data, only_new=only_new)
        if isinstance(data, bytes):
            self._tell(key, data)

    def list(self, prefix: str) -> Iterator[Stored]:
        self._check()
        yield from super().list(prefix)
        key = f"{prefix.removesuffix('/')}/report.json"
        agent = self._reporter(key)
        if agent and agent.ended_at is not None:  # by the store's own clock, which is right
            yield Stored(key, 1, moment(agent.ended_at).timestamp(), "")

    def delete(self, key: str) -> None:
        self._check()
        super().delete(key)

    def _check(self) -> None:
        if not self._world.real.deaf:
            return
        if any(shelf.hung for shelf in self._world.shelves.values()):
            self.takes(HUNG_S)
            raise StoreUnavailable(f"the store has not answered for {HUNG_S:.0f} s")
        raise StoreDenied("the store refuses the key")

    def _reporter(self, key: str) -> Agent | None:
        found = _OF_ATTEMPT.fullmatch(key)
        return self._world.agents.get(_node_key(found)) if found and found["what"] == "report" else None

    def _report_of(self, agent: Agent) -> bytes | None:
        """As it was last written: with every heartbeat, and whenever there is news."""
        key, beat = agent.machine.key, int(self._world.timeline.now / stores.pacing(self).beat_s)
        if (kept := self._written.get(key)) and (kept.agent, kept.beat, kept.news) == (agent, beat, agent.reports.news):
            return kept.data
        if (report := agent.reports.said()) is None:
            return None
        self._written[key] = StoredReport(agent, beat, agent.reports.news, wire.dump(report))
        return self._written[key].data

    def _tell(self, key: str, data: bytes) -> None:
        found = _OF_ATTEMPT.fullmatch(key)
        if not found:
            return
        number, node_key = int(found["number"]), _node_key(found)
        shelf = self._world.shelf(found["run"], int(found["node"] or 0))
        if found["what"] == "lease":
            self._world.stored_leases.given(node_key, wire.load(Lease, data).seconds)
        elif found["what"] == "orders":
            shelf.orders.add(number)
            self._later(node_key, Agent.begin)
        elif found["what"] == "wishes":
            wishes = wire.load(Wishes, data)
            if wishes.fuse != shelf.word(number).fuse:
                shelf.told_at[number] = self._world.timeline.now
            shelf.words[number] = Word(wishes.wish, wishes.notice, wishes.fuse, bool(wishes.broken))
            self._later(node_key, lambda agent: agent.hear(stores.FAR.wishes_s))

    def _later(self, node_key: str, what: Callable[[Agent], None]) -> None:
        def read() -> None:
            if agent := self._world.agents.get(node_key):
                what(agent)

        self._world.timeline.after(READ_S, read)


def _node_key(found: re.Match[str]) -> str:
    node = int(found["node"] or 0)
    return f"{found['run']}-{found['number']}" + (f"-{node}" if node else "")
