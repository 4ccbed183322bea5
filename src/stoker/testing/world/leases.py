"""The leases of machines: renewed as long as the server tells their agents something, and over some time after."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

from stoker.testing.world.cloud import Cloud
from stoker.testing.world.machine import Machine
from stoker.testing.world.timeline import Timeline


class Leases:
    """Between two rounds that tell the same agents the same, renewals go on by themselves: they need no moment each."""

    def __init__(self, cloud: Cloud, timeline: Timeline, lease_s: float) -> None:
        self._cloud = cloud
        self._timeline = timeline
        self._lease_s = lease_s
        self.is_cut: Callable[[Machine], bool] = lambda _: False
        self.over: Callable[[Machine], None] = lambda _: None  # the node notices it
        self.checked: Callable[[Machine], None] = lambda _: None  # whoever keeps the promise looks at it

    def begin(self, machine: Machine) -> None:
        """It has booted, and counts from here."""
        self._run_out(machine)
        self.settle(machine)

    def renew(self, keys: Collection[str]) -> None:
        """The server tells the agents of these, and of no others."""
        for machine in self._cloud.machines.values():
            renewed = machine.key in keys
            if renewed != machine.renewed:
                machine.renewed = renewed
                self.settle(machine)

    def settle(self, machine: Machine) -> None:
        """Whether it is renewed, or can see that, has changed."""
        if not self._lease_s or not machine.up or machine.off:
            return
        if machine.renewed and not self.is_cut(machine):
            machine.lease_until = math.inf
        elif machine.lease_until == math.inf:
            self._run_out(machine)

    def _run_out(self, machine: Machine) -> None:
        if self._lease_s:
            until = machine.lease_until = self._timeline.now + self._lease_s
            self._timeline.at(until, lambda: self._check(machine, until))

    def _check(self, machine: Machine, until: float) -> None:
        if machine.lease_until == until and not machine.off:
            self.checked(machine)
            self.over(machine)
