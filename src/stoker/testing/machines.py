"""The contract of every kind of the twin's machines, including the fake one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.errors import TwinFailed
from stoker.twin.machines import Machines, MachineSpec

SCRIPT = b"#!/bin/sh\ntrue\n"


def spec(name: str) -> MachineSpec:
    facts = {"name": name, "vmId": f"id-{name}", "resourceGroupName": "group"}
    return MachineSpec(name, SCRIPT, f"10.0.0.{4 + len(name)}", facts, "network")


class MachinesContract(ABC):
    @abstractmethod
    def make(self, folder: Path) -> Machines:
        """Machines in this folder, which is empty."""

    @pytest.fixture
    def machines(self, tmp_path: Path) -> Iterator[Machines]:
        made = self.make(tmp_path)
        yield made
        for name in made.names():
            made.destroy(name)
        made.close()

    def test_a_machine_is_on_when_it_is_made_and_is_listed(self, machines: Machines) -> None:
        assert machines.names() == []
        machines.create(spec("a"))
        assert machines.names() == ["a"]
        assert machines.alive("a")

    def test_power_goes_off_and_on_and_twice_is_fine(self, machines: Machines) -> None:
        machines.create(spec("a"))
        for _ in range(2):
            machines.power_off("a")
            assert not machines.alive("a")
        for _ in range(2):
            machines.start("a")
            assert machines.alive("a")

    def test_making_one_that_exists_powers_it_on(self, machines: Machines) -> None:
        machines.create(spec("a"))
        machines.power_off("a")
        machines.create(spec("a"))
        assert machines.alive("a")
        assert machines.names() == ["a"]

    def test_a_destroyed_machine_is_gone_and_twice_is_fine(self, machines: Machines) -> None:
        machines.create(spec("a"))
        machines.create(spec("bb"))
        for _ in range(2):
            machines.destroy("a")
            assert machines.names() == ["bb"]
            assert not machines.alive("a")

    def test_an_unknown_machine_is_off_and_can_be_neither_started_nor_told_anything(self, machines: Machines) -> None:
        assert not machines.alive("nobody")
        machines.power_off("nobody")
        machines.destroy("nobody")
        with pytest.raises(KeyError):
            machines.start("nobody")
        with pytest.raises(KeyError):
            machines.run_command("nobody", "true", 5)
        with pytest.raises(KeyError):
            machines.set_events("nobody", {"DocumentIncarnation": 1, "Events": []})

    def test_a_command_runs_in_a_machine_that_is_on_and_in_no_other(self, machines: Machines) -> None:
        machines.create(spec("a"))
        code, out, _ = machines.run_command("a", "echo hello", 30)
        assert code == 0
        assert "hello" in out
        machines.power_off("a")
        with pytest.raises(TwinFailed, match="a is off"):
            machines.run_command("a", "echo hello", 30)
