"""What providers have to offer for the runs that wait: asked for beside the rounds, and kept for a while."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping

from stoker.engine.offers.market import Market, needs
from stoker.errors import NotSetUp, ProviderFailed, StokerError
from stoker.model.node.node import Need, Offer
from stoker.model.node.orders import Wish
from stoker.model.run.run import Run, RunState
from stoker.providers import Provider
from stoker.server.rounds.outside import Clock, call

log = logging.getLogger(__name__)

KEEP_S = 60.0
RETRY_S, MOST_RETRY_S = 1.0, 10.0  # before a provider that failed is asked again: longer each time

Ask = tuple[str, Need]


class Offers:
    def __init__(self, providers: Mapping[str, Provider], clock: Clock, wake: Callable[[], None]) -> None:
        self._providers = providers
        self._clock = clock
        self._wake = wake
        self._known: dict[Ask, tuple[float, list[Offer]]] = {}
        self._under_way: dict[Ask, asyncio.Task[None]] = {}
        self._retry_s: dict[Ask, float] = {}
        self.trouble: dict[str, StokerError] = {}  # by provider: why it could not be asked

    def market(self, runs: Collection[Run]) -> tuple[Market, set[str]]:
        """The offers for those that may need a node, and the ids of runs for which they are not known yet."""
        market: dict[Ask, list[Offer]] = {}
        unknown: set[str] = set()
        for run in runs:
            for ask in self._asks(run):
                if ask in self._known:
                    market[ask] = self._known[ask][1]
                elif run.state is RunState.QUEUED and run.wish is Wish.GO_ON:
                    unknown.add(run.id)
                if ask not in self._known or self._clock.steady() - self._known[ask][0] > KEEP_S:
                    self._send_for(ask)
        return market, unknown

    def _asks(self, run: Run) -> list[Ask]:
        provider = self._providers.get(run.job.on)
        if provider is None or not provider.features.market or run.state.ended or run.at_rest:
            return []
        return [(run.job.on, need) for need in needs(run.job, run.pool)]

    def _send_for(self, ask: Ask) -> None:
        if ask not in self._under_way:
            self._under_way[ask] = asyncio.create_task(self._ask(ask), name=f"offers of {ask[0]}")

    async def _ask(self, ask: Ask) -> None:
        name, need = ask
        try:
            offers = await call(self._providers[name].offers, need)
            if unready := next((offer.unready for offer in offers if offer.unready), ""):
                raise NotSetUp(unready)
            self._known[ask] = (self._clock.steady(), offers)
            self.trouble.pop(name, None)
            self._retry_s.pop(ask, None)
        except Exception as error:
            known = error if isinstance(error, StokerError) else ProviderFailed(f"{type(error).__name__}: {error}")
            if str(self.trouble.get(name)) != str(known):
                log.warning("the offers of %s: %s", name, known.message, exc_info=None if known is error else error)
            self.trouble[name] = known
            pause_s = self._retry_s.get(ask, RETRY_S)
            self._retry_s[ask] = min(1.5 * pause_s, MOST_RETRY_S)
            await asyncio.sleep(pause_s)
        finally:
            self._under_way.pop(ask, None)
        self._wake()
