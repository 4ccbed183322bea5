"""Machines that are entries in a dictionary: for tests of a control plane without processes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from stoker.errors import TwinFailed
from stoker.twin.machines import MachineSpec

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
