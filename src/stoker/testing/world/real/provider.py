"""The cloud of the world as a provider: looked at often while something happens, and rarely otherwise."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from functools import cache

from stoker.engine.nodes.keys import node_of
from stoker.errors import LoginFailed, ProviderUnavailable
from stoker.model.node.node import Features, Need, NodeRequest, NodeSight, Offer
from stoker.testing.world.cloud import WorldCloud
from stoker.testing.world.scenario import MishapKind
from stoker.testing.world.timeline import Timeline

NEAR_S, SOON_S, LATE_S = 0.4, 1.0, 30.0  # between looks


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

    def price_now(self, offer: Offer) -> Decimal:
        return self._cloud.prices[offer.place]

    def _check(self) -> None:
        if self._cloud.faults[MishapKind.LOGGED_OUT]:
            raise LoginFailed("the login has expired")
        if self._cloud.faults[MishapKind.BLIND] and self._slots is None:
            raise ProviderUnavailable("the provider does not answer")
