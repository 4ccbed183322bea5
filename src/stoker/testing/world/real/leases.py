"""The leases that machines read in the store: each lasts from when its machine first sees it."""

from __future__ import annotations

from stoker.testing.world.leases import WorldLeases
from stoker.testing.world.machine import WorldMachine


class StoredLeases(WorldLeases):
    """Machines look often, and their looks need no events: a lease is seen when it is written, or as soon as a machine
    that was cut off can read again."""

    def given(self, key: str, seconds: float) -> None:
        """The server has written one."""
        machine = self._cloud.machines.get(key)
        if machine is None:
            return
        machine.lease_s, machine.given_at, machine.renewed = seconds, self._timeline.now, True
        self.settle(machine)

    def settle(self, machine: WorldMachine) -> None:
        """`renewed`: there is one that the machine has not seen. An idle machine stays only for a short time."""
        if not machine.lease_s or not machine.up or machine.off:
            return
        if machine.renewed and not self.is_cut(machine):
            machine.renewed = False
            self._run_out(machine)
        elif self.is_idle(machine) and self._timeline.now + self._lasts_s(machine) < machine.lease_until:
            self._run_out(machine)
