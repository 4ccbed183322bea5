"""Why an agent is silent: it reports only through its store, so the store is probed, outside the event loop."""

from __future__ import annotations

import asyncio

from stoker.errors import StokerError, StoreFailed
from stoker.server.rounds.outside import Clock, call_far
from stoker.stores import Store
from stoker.stores.pacing import NEAR, pacing

PATIENCE_S = 1.0  # the longest that a request about a run waits for this
_KEEP_S = 5.0  # a list of a hundred silent runs probes their store once


class Probing:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: dict[str, tuple[float, str]] = {}  # by URL: when it was probed, and the result
        self._under_way: dict[str, asyncio.Task[None]] = {}

    async def why(self, store: Store) -> str:
        """What is wrong with the store, as the end of a sentence; empty where nothing is, or it is not known yet. A
        remote one is not probed while a client waits."""
        if pacing(store) is not NEAR:
            return ""
        at, why = self._known.get(store.url, (float("-inf"), ""))
        if self._clock.steady() - at < _KEEP_S:
            return why
        if store.url not in self._under_way:
            self._under_way[store.url] = asyncio.create_task(self._ask(store), name=f"probe {store.url}")
        await asyncio.wait([self._under_way[store.url]], timeout=PATIENCE_S)
        return self._known.get(store.url, (0.0, ""))[1]

    async def _ask(self, store: Store) -> None:
        try:
            why = await call_far(_probe, store)
        except StokerError as error:
            why = f": {error.message}"
        finally:
            self._under_way.pop(store.url, None)
        self._known[store.url] = self._clock.steady(), why


def _probe(store: Store) -> str:
    try:
        store.put("probe", b"?")
        store.delete("probe")
    except StoreFailed as error:
        return f": {error.message.split(': could not')[0]}; {error.hint}" if error.hint else f": {error.message}"
    return ""
