"""The twin for test authors, machines without processes, and the contract of every kind of machines."""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from stoker.errors import TwinFailed
from stoker.twin.machines import Machines, MachineSpec
from stoker.twin.machines.opening import open_machines
from stoker.twin.state import CloudState
from stoker.twin.time.weather import Weather
from stoker.twin.twin import OpenMachines, Twin, TwinAddress
from stoker.twin.web import server
from stoker.twin.world import TwinWorld

Run = Callable[[str, str], tuple[int, str, str]]  # (machine, script) -> exit code, stdout, stderr


@dataclass(slots=True)
class FakeMachine:
    spec: MachineSpec
    on: bool = True
    boots: int = 1
    disk: dict[str, str] = field(default_factory=dict)  # survives a power-off, not a deletion
    events: Mapping[str, Any] = field(default_factory=dict)


def say_the_script(machine: str, script: str) -> tuple[int, str, str]:
    """A command that prints itself, so that a test can see that it arrived."""
    return 0, f"{machine}: {script}\n", ""


class FakeMachines:
    """Does what the Protocol says, at once. `history` contains every call that changed something."""

    def __init__(self, run: Run = say_the_script) -> None:
        self.machines: dict[str, FakeMachine] = {}
        self.history: list[tuple[str, str]] = []
        self.exposed: list[int] = []
        self._run = run
        self._lock = threading.Lock()

    def names(self) -> list[str]:
        with self._lock:
            return list(self.machines)

    def create(self, spec: MachineSpec) -> None:
        with self._lock:
            if spec.name in self.machines:
                self._power(spec.name, on=True)
                return
            self.machines[spec.name] = FakeMachine(spec)
            self.history.append(("create", spec.name))

    def start(self, name: str) -> None:
        with self._lock:
            self._power(name, on=True)

    def power_off(self, name: str) -> None:
        with self._lock:
            if name in self.machines:
                self._power(name, on=False)

    def _power(self, name: str, *, on: bool) -> None:
        machine = self.machines[name]
        if machine.on != on:
            machine.on = on
            machine.boots += on
            self.history.append(("start" if on else "power_off", name))

    def destroy(self, name: str) -> None:
        with self._lock:
            if self.machines.pop(name, None):
                self.history.append(("destroy", name))

    def alive(self, name: str) -> bool:
        with self._lock:
            return self.machines[name].on if name in self.machines else False

    def run_command(self, name: str, script: str, timeout_s: float) -> tuple[int, str, str]:  # noqa: ARG002  # none waits
        if not self.machines[name].on:
            raise TwinFailed(f"machine {name} is off")
        return self._run(name, script)

    def set_events(self, name: str, document: Mapping[str, Any]) -> None:
        with self._lock:
            self.machines[name].events = dict(document)

    def expose(self, port: int) -> None:
        self.exposed.append(port)

    def connect(self, name: str, port: int, connection: socket.socket) -> None:
        """Sends its name, if it is on."""
        if self.alive(name):
            connection.sendall(f"{name}:{port}\n".encode())

    def close(self) -> None:
        """Nothing is held."""


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


class TwinHandle:
    """A running twin, with helpers for tests: `ask` and `order` call its control API."""

    def __init__(self, twin: Twin) -> None:
        self._twin = twin
        self._context = ssl.create_default_context(cafile=twin.address.authority)

    @property
    def address(self) -> TwinAddress:
        return self._twin.address

    @property
    def machines(self) -> Machines:
        return self._twin.machines

    @property
    def cloud(self) -> CloudState:
        return self._twin.world.cloud

    def ask(self, word: str) -> Any:
        return self._call("GET", word, None)

    def order(self, word: str, **order: Any) -> Any:
        return self._call("POST", word, json.dumps(order).encode())

    def _call(self, method: str, word: str, body: bytes | None) -> Any:
        headers = {"Authorization": f"Bearer {self.address.token}"}
        request = Request(f"{self.address.url}/twin/{word}", body, headers, method=method)
        try:
            with urlopen(request, context=self._context, timeout=30) as answer:
                return json.load(answer)
        except HTTPError as error:
            raise ValueError(json.load(error)["error"]["message"]) from error

    def forget(self) -> None:
        """Deletes everything in it at once, without an action on any machine."""
        self._twin.world.change(lambda cloud, _: (cloud.drop(*cloud.resources), None))

    def wait(self, condition: Callable[[CloudState], Any], seconds: float = 20.0) -> Any:
        """Waits until this is true of the cloud, and returns the value of the condition."""
        give_up = time.monotonic() + seconds
        while not (found := condition(self.cloud)):
            if time.monotonic() > give_up:
                raise TimeoutError(f"timed out after {seconds} s; status of the twin: {self.ask('status')}")
            time.sleep(0.01)
        return found


def real_machines(folder: Path) -> OpenMachines:
    """Machines of the kind that this computer supports, for a `Twin` of the same folder."""

    def open_(world: TwinWorld) -> Machines:
        authority = server.certificate(folder / "tls").authority
        return open_machines(folder / "machines", world.token_for, acknowledged=world.acknowledged, authority=authority)

    return open_


@contextmanager
def twin(
    folder: Path, machines: Machines | None = None, *, weather: Weather | None = None, speed: float = 1.0
) -> Iterator[TwinHandle]:
    """A twin in this process, with fake machines unless others are given."""
    given: Machines = FakeMachines() if machines is None else machines
    running = Twin(folder, lambda _: given, weather=weather, speed=speed)
    running.start()
    try:
        yield TwinHandle(running)
    finally:
        running.close()


@pytest.fixture
def azure_twin(tmp_path: Path) -> Iterator[TwinHandle]:
    """For your conftest: `from stoker.testing.twin import azure_twin`."""
    with twin(tmp_path / "twin") as handle:
        yield handle
