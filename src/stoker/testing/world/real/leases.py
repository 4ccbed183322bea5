"""The leases of machines as they read them in the store: each lasts from when its machine first sees it."""

from __future__ import annotations

from stoker.testing.world.leases import Leases
from stoker.testing.world.machine import Machine


class StoredLeases(Leases):
    """Machines look often, and their looks need no moment each: a lease is seen when it is written, or as soon as a
    machine that was cut off can read again."""

    def given(self, key: str, seconds: float) -> None:
        """The server has written one."""
        machine = self._cloud.machines.get(key)
        if machine is None:
            return
        machine.lease_s, machine.given_at, machine.renewed = seconds, self._timeline.now, True
        self.settle(machine)

    def settle(self, machine: Machine) -> None:
        """`renewed`: there is one that the machine has not seen. One that is idle stays for a short time only."""
        if not machine.lease_s or not machine.up or machine.off:
            return
        if machine.renewed and not self.is_cut(machine):
            machine.renewed = False
            self._run_out(machine)
        elif self.is_idle(machine) and self._timeline.now + self._lasts_s(machine) < machine.lease_until:
            self._run_out(machine)
