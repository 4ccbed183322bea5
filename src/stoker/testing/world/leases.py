"""The leases of machines: renewed as long as the server tells their agents something, and over some time after."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from stoker.testing.world.cloud import Cloud
from stoker.testing.world.machine import Machine
from stoker.testing.world.timeline import Timeline


class Leases:
    """Between two rounds that tell the same agents the same, renewals go on by themselves: they need no moment each."""

    def __init__(self, cloud: Cloud, timeline: Timeline, idle_s: float) -> None:
        self._cloud = cloud
        self._timeline = timeline
        self.idle_s = idle_s
        self.is_cut: Callable[[Machine], bool] = lambda _: False
        self.is_idle: Callable[[Machine], bool] = lambda _: False  # its agent has given its last report
        self.over: Callable[[Machine], None] = lambda _: None  # the node notices it
        self.checked: Callable[[Machine], None] = lambda _: None  # whoever keeps the promise looks at it

    def begin(self, machine: Machine) -> None:
        """It has booted, and counts from here."""
        if machine.lease_s and machine.incarnation > 1:  # no more than what is left of it
            until = machine.lease_until = machine.given_at + machine.lease_s
            self._timeline.at(until, lambda: self._check(machine, until))
        elif machine.lease_s:
            self._run_out(machine)
        self.settle(machine)

    def renew(self, lasting_s: Mapping[str, float]) -> None:
        """The server tells the agents of these, by key, and of no others: each may stay so long from its last word."""
        for machine in self._cloud.machines.values():
            renewed = machine.key in lasting_s
            if renewed and not (machine.up and self.is_cut(machine)):
                machine.lease_s, machine.given_at = lasting_s[machine.key], self._timeline.now
            if renewed != machine.renewed:
                # While it was renewed that went on all the time, without a moment each.
                machine.given_at = self._timeline.now if machine.renewed else machine.given_at
                machine.renewed = renewed
                self.settle(machine)

    def cut(self, key: str) -> None:
        """The server could not release it: it is told through the store that it may not stay."""
        machine = self._cloud.machines.get(key)
        if machine and machine.lease_s and machine.up and not machine.off and not self.is_cut(machine):
            machine.lease_s, machine.renewed = min(machine.lease_s, self.idle_s), False
            self.settle(machine)

    def settle(self, machine: Machine) -> None:
        """Whether it is renewed, or can see that, or has something to do, has changed."""
        if not machine.lease_s or not machine.up or machine.off:
            return
        if machine.renewed and not self.is_cut(machine):
            machine.lease_until = math.inf
        elif self._timeline.now + self._lasts_s(machine) < machine.lease_until:
            self._run_out(machine)

    def _lasts_s(self, machine: Machine) -> float:
        return min(machine.lease_s, self.idle_s) if self.is_idle(machine) else machine.lease_s

    def _run_out(self, machine: Machine) -> None:
        until = machine.lease_until = self._timeline.now + self._lasts_s(machine)
        self._timeline.at(until, lambda: self._check(machine, until))

    def _check(self, machine: Machine, until: float) -> None:
        if machine.lease_until == until and not machine.off:
            self.checked(machine)
            self.over(machine)
