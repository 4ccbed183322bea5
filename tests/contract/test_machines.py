"""Every kind of the twin's machines, and the fake, keeps the contract."""

from __future__ import annotations

from pathlib import Path

from stoker.testing.twin import FakeMachines, MachinesContract
from stoker.twin.machines import Machines
from stoker.twin.machines.opening import open_machines


class TestFakeMachines(MachinesContract):
    def make(self, folder: Path) -> Machines:
        return FakeMachines()


class TestPlainMachines(MachinesContract):
    def make(self, folder: Path) -> Machines:
        return open_machines(folder / "machines", lambda _name, _resource: {}, walls=False)


class TestMachinesOfTheKindThatIsAllowedHere(MachinesContract):
    def make(self, folder: Path) -> Machines:
        return open_machines(folder / "machines", lambda _name, _resource: {})
