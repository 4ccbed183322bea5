"""What providers see: those nearby are looked at in every round, those far away at their own pace beside it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from stoker.errors import ProviderFailed, StokerError
from stoker.model.node.node import NodeSight
from stoker.providers import Provider
from stoker.server.rounds.outside import Clock, call

log = logging.getLogger(__name__)

NEAR_S = 0.5  # a provider that is worth looking at more often than this answers at once

Sights = Mapping[str, list[NodeSight]]  # by provider


class Lookout:
    def __init__(self, providers: Mapping[str, Provider], clock: Clock, wake: Callable[[], None]) -> None:
        self._providers = providers
        self._clock = clock
        self._wake = wake
        self._fresh: dict[str, list[NodeSight]] = {}
        self._looked: dict[str, float] = {}  # by provider: when it was last asked
        self._under_way: dict[str, asyncio.Task[None]] = {}
        self.trouble: dict[str, StokerError] = {}  # by provider: why it could not be asked

    async def look(self, busy: set[str]) -> Sights:
        """What was seen since the last look. A provider that is not in it was not asked: nothing can be concluded from
        its silence. `busy` are those that have something to be looked at; the others are asked now and then."""
        for name, provider in self._providers.items():
            if provider.features.look_every_s < NEAR_S:
                await self._ask(name, provider)
            elif name not in self._under_way and self._is_due(name, provider, name in busy):
                self._under_way[name] = asyncio.create_task(self._ask_far(name, provider), name=f"look {name}")
        fresh, self._fresh = self._fresh, {}
        return fresh

    def _is_due(self, name: str, provider: Provider, busy: bool) -> bool:
        pause_s = provider.features.look_every_s if busy else provider.features.look_idle_s
        return name not in self._looked or self._clock.steady() - self._looked[name] >= pause_s

    async def _ask_far(self, name: str, provider: Provider) -> None:
        try:
            await self._ask(name, provider)
        finally:
            self._under_way.pop(name, None)
            self._looked[name] = self._clock.steady()
        self._wake()

    async def _ask(self, name: str, provider: Provider) -> None:
        try:
            self._fresh[name] = await call(provider.look)
            self.trouble.pop(name, None)
        except Exception as error:
            known = error if isinstance(error, StokerError) else ProviderFailed(f"{type(error).__name__}: {error}")
            if name not in self.trouble or self.trouble[name].message != known.message:
                log.warning("looking at %s: %s", name, known.message, exc_info=None if known is error else error)
            self.trouble[name] = known
