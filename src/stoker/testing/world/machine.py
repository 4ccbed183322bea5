"""One machine of the world: its power, its cost, and its lease."""

from __future__ import annotations

import math
from decimal import Decimal

from stoker.engine.nodes.keys import node_of
from stoker.model.node.node import NodeSight, NodeState, Offer
from stoker.model.run.money import Fuse


class WorldMachine:
    """`number` and `node` are those of the attempt in its key. `first_key` is the one that it was requested with."""

    def __init__(self, key: str, run: str, offer: Offer | None, now: float, usd_per_hour: Decimal) -> None:
        self.fuse: Fuse | None = None  # what it may spend, as known when it was requested
        self.key = key
        self.run = run
        self.first_key = key
        _, self.number, self.node = node_of(key)
        self.offer = offer
        self.created_at = now
        self.up = False  # it has booted
        self.off = False
        self.releasing = False
        self.trouble = ""  # why its allocation failed
        self.reason = ""
        self.taken = False  # evicted by the provider
        self.unseen = 0  # how many faults hide it from the provider's list
        self.lease_until = math.inf  # while the server renews it
        self.lease_s = 0.0  # the last one
        self.given_at = now  # its start
        self.first_lease_s = 0.0  # as requested: how long its provider restores it
        self.incarnation = 1
        self.renewed = False
        self.price = usd_per_hour
        self._since = now
        self._cost = 0.0

    def cost(self, now: float) -> float:
        """In dollars, as the cloud bills it: from the request until it is off."""
        running = 0.0 if self.off else (now - self._since) * float(self.price) / 3600
        return self._cost + running

    def reprice(self, usd_per_hour: Decimal, now: float) -> None:
        self._cost, self._since, self.price = self.cost(now), now, usd_per_hour

    def switch_off(self, now: float, reason: str = "") -> None:
        if not self.off:
            self._cost, self._since, self.off, self.reason = self.cost(now), now, True, reason

    def switch_on(self, now: float) -> None:
        """Its provider restores it, with an empty disk."""
        self._since, self.off, self.up, self.taken, self.reason = now, False, False, False, ""
        self.lease_until, self.renewed = math.inf, False
        self.incarnation += 1

    def hand_over(self, key: str) -> None:
        """The next attempt of its run has it from now on."""
        self.key = key
        _, self.number, self.node = node_of(key)

    def sight(self) -> NodeSight:
        machine = self.first_key if self.first_key != self.key else ""
        if self.off:
            return NodeSight(
                self.key, NodeState.GONE, self.reason, self.trouble, still=True, taken=self.taken, machine=machine
            )
        if self.releasing:
            return NodeSight(self.key, NodeState.GONE, "it is being released", usd_per_hour=self.price, machine=machine)
        state = NodeState.UP if self.up else NodeState.STARTING
        return NodeSight(self.key, state, usd_per_hour=self.price, machine=machine)
