"""The store of the world: the server's messages reach agents, and the reports of agents can be read."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from stoker.errors import Missing, StoreDenied, StoreFailed, StoreUnavailable
from stoker.model import wire
from stoker.model.node.node import Lease
from stoker.model.node.orders import Wishes
from stoker.stores import Stored, pacing
from stoker.testing.memory_store import MemoryStore
from stoker.testing.world.agent import Agent
from stoker.testing.world.shelf import Word
from stoker.testing.world.timeline import moment

if TYPE_CHECKING:
    from stoker.testing.world.real.world import RealWorld

NEAR, FAR = "file:///world", "/world"  # `stores/pacing.py` tells them apart by these
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
        key, beat = agent.machine.key, int(self._world.timeline.now / pacing.pacing(self).beat_s)
        if (kept := self._written.get(key)) and (kept.agent, kept.beat, kept.news) == (agent, beat, agent.news):
            return kept.data
        if (report := agent.said()) is None:
            return None
        self._written[key] = StoredReport(agent, beat, agent.news, wire.dump(report))
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
            self._later(node_key, lambda agent: agent.hear(pacing.FAR.wishes_s))

    def _later(self, node_key: str, what: Callable[[Agent], None]) -> None:
        def read() -> None:
            if agent := self._world.agents.get(node_key):
                what(agent)

        self._world.timeline.after(READ_S, read)


def _node_key(found: re.Match[str]) -> str:
    node = int(found["node"] or 0)
    return f"{found['run']}-{found['number']}" + (f"-{node}" if node else "")
