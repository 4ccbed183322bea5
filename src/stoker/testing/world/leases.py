"""The leases of machines: renewed while the server sends messages to their agents, and expired some time after."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from stoker.testing.world.cloud import WorldCloud
from stoker.testing.world.machine import WorldMachine
from stoker.testing.world.timeline import Timeline


class WorldLeases:
    """Between two rounds with the same messages to the same agents, renewals are implicit: they need no events."""

    def __init__(self, cloud: WorldCloud, timeline: Timeline, idle_s: float) -> None:
        self._cloud = cloud
        self._timeline = timeline
        self.idle_s = idle_s
        self.is_cut: Callable[[WorldMachine], bool] = lambda _: False
        self.is_idle: Callable[[WorldMachine], bool] = lambda _: False  # its agent has written its final report
        self.over: Callable[[WorldMachine], None] = lambda _: None  # the node notices that it has expired
        self.checked: Callable[[WorldMachine], None] = lambda _: None  # the check of the promise

    def begin(self, machine: WorldMachine) -> None:
        """It has booted, and counts from here."""
        if machine.lease_s and machine.incarnation > 1:  # no more than the rest
            until = machine.lease_until = machine.given_at + machine.lease_s
            self._timeline.at(until, lambda: self._check(machine, until))
        elif machine.lease_s:
            self._run_out(machine)
        self.settle(machine)

    def renew(self, lasting_s: Mapping[str, float]) -> None:
        """The server sends messages to the agents of these, by key, and no others: each may stay so long afterwards."""
        for machine in self._cloud.machines.values():
            renewed = machine.key in lasting_s
            if renewed and not (machine.up and self.is_cut(machine)):
                machine.lease_s, machine.given_at = lasting_s[machine.key], self._timeline.now
            if renewed != machine.renewed:
                # Renewals were implicit up to now.
                machine.given_at = self._timeline.now if machine.renewed else machine.given_at
                machine.renewed = renewed
                self.settle(machine)

    def cut(self, key: str) -> None:
        """The server could not release it: a message in the store ends its lease."""
        machine = self._cloud.machines.get(key)
        if machine and machine.lease_s and machine.up and not machine.off and not self.is_cut(machine):
            machine.lease_s, machine.renewed = min(machine.lease_s, self.idle_s), False
            self.settle(machine)

    def settle(self, machine: WorldMachine) -> None:
        """Whether it is renewed, or can see that, or has something to do, has changed."""
        if not machine.lease_s or not machine.up or machine.off:
            return
        if machine.renewed and not self.is_cut(machine):
            machine.lease_until = math.inf
        elif self._timeline.now + self._lasts_s(machine) < machine.lease_until:
            self._run_out(machine)

    def _lasts_s(self, machine: WorldMachine) -> float:
        return min(machine.lease_s, self.idle_s) if self.is_idle(machine) else machine.lease_s

    def _run_out(self, machine: WorldMachine) -> None:
        until = machine.lease_until = self._timeline.now + self._lasts_s(machine)
        self._timeline.at(until, lambda: self._check(machine, until))

    def _check(self, machine: WorldMachine, until: float) -> None:
        if machine.lease_until == until and not machine.off:
            self.checked(machine)
            self.over(machine)
