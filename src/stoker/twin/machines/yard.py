"""All machines of a twin, whatever separates them from the host: created, found again, watched and removed."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from stoker.errors import TwinFailed
from stoker.files.lock import claim
from stoker.twin.machines import Acknowledged, MachineSpec, TokenFor, access
from stoker.twin.machines.access import run_script
from stoker.twin.machines.folder import MachineFolder, read, write
from stoker.twin.machines.listener import Handle, Listener
from stoker.twin.machines.metadata import NO_EVENTS, MetadataSubject, instance_document, serve
from stoker.twin.machines.outward import join, relay_to
from stoker.twin.machines.power import Enclosure, RunningPower
from stoker.twin.machines.userdata import plan

log = logging.getLogger("stoker.twin")


class Yard:
    """`first_events_s(name)` is the duration of a machine's first response about scheduled events, in seconds.

    `served` are ports of every machine's loopback that the twin itself serves.
    """

    def __init__(
        self,
        folder: Path,
        enclosure: Enclosure,
        token_for: TokenFor,
        acknowledged: Acknowledged,
        first_events_s: Callable[[str], float],
        served: Mapping[int, Handle],
    ) -> None:
        self._folder = folder
        self._enclosure = enclosure
        self._token_for = token_for
        self._acknowledged = acknowledged
        self._first_events_s = first_events_s
        self._served = served
        self._mutex = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._key = _lock(folder)
        self._ports: set[int] = set(read(folder / "ports.json").get("ports", []))
        self._machines: dict[str, TwinMachine] = {}
        for each in sorted(folder.iterdir()):
            if each.is_dir():
                self._find(MachineFolder(each))

    def names(self) -> list[str]:
        return sorted(self._machines)

    def create(self, spec: MachineSpec) -> None:
        folder = MachineFolder.of(self._folder, spec.name)
        with self._mutex:
            machine = self._machines.setdefault(spec.name, TwinMachine(spec, folder))
        with machine.lock:
            if folder.spec() is None:
                folder.path.mkdir(parents=True, exist_ok=True, mode=0o700)
                folder.save_spec(spec)
            self._power_on(machine)

    def start(self, name: str) -> None:
        machine = self._machines[name]
        with machine.lock:
            self._power_on(machine)

    def power_off(self, name: str) -> None:
        machine = self._machines.get(name)
        if machine is not None:
            with machine.lock:
                self._power_off(machine)

    def destroy(self, name: str) -> None:
        machine = self._machines.get(name)
        if machine is None:
            return
        with machine.lock:
            self._power_off(machine)
            machine.folder.remove()
        with self._mutex:
            self._machines.pop(name, None)

    def alive(self, name: str) -> bool:
        """A machine that has shut down by itself counts as off from the next look on."""
        machine = self._machines.get(name)
        if machine is None:
            return False
        power = machine.power
        if power is not None and not power.alive:
            with machine.lock:
                if machine.power is power:
                    self._power_off(machine)
        return machine.power is not None

    def run_command(self, name: str, script: str, timeout_s: float) -> tuple[int, str, str]:
        machine = self._machines[name]
        with machine.lock:
            power = machine.power
            if power is None or not power.alive:
                raise TwinFailed(f"machine {name} is off")
            machine.commands += 1
            number = machine.commands
        return run_script(self._enclosure, power, machine.folder, number, script, timeout_s)

    def set_events(self, name: str, document: Mapping[str, Any]) -> None:
        machine = self._machines[name]
        machine.events = dict(document)
        write(machine.folder.events, machine.events)

    def expose(self, port: int) -> None:
        with self._mutex:
            if port in self._ports:
                return
            self._ports.add(port)
            write(self._folder / "ports.json", {"ports": sorted(self._ports)})
            machines = list(self._machines.values())
        for machine in machines:
            with machine.lock:
                if machine.power is not None:
                    self._serve(machine, machine.power, port, partial(relay_to, port))

    def connect(self, name: str, port: int, connection: socket.socket) -> None:
        machine = self._machines.get(name)
        power = machine.power if machine else None
        if machine is None or power is None or not power.alive:
            return
        if port == access.PORT:
            self._log_in(machine, power, connection)
            return
        reached = self._enclosure.connected(power, machine.spec.address, port)
        if reached is not None:
            with reached:
                reached.settimeout(None)
                join(connection, reached)

    def _log_in(self, machine: TwinMachine, power: RunningPower, connection: socket.socket) -> None:
        way = self._enclosure.way_in(power, machine.folder)
        if way is None:
            return
        if not Path(access.PROGRAM).exists():
            log.warning(access.LACKING)
            return
        with machine.lock:  # two first connections would create the account twice
            code, _, err = self.run_command(machine.spec.name, access.preparation(machine.spec.facts), 30.0)
        if code:
            log.warning("could not prepare the sshd of machine %s: %s", machine.spec.name, err.strip())
            return
        access.serve(*way, connection.fileno(), machine.folder.console)

    def close(self) -> None:
        for machine in list(self._machines.values()):
            with machine.lock:
                machine.off.set()
                for listener in machine.listeners:
                    listener.close()
                machine.listeners.clear()
                power, machine.power = machine.power, None
                if power is not None:
                    self._enclosure.let_go(power, machine.folder)
        os.close(self._key)

    def _find(self, folder: MachineFolder) -> None:
        """A machine that was being created or removed when the twin died is removed."""
        spec = folder.spec()
        if spec is None:
            folder.remove()
            return
        machine = self._machines[spec.name] = TwinMachine(spec, folder)
        machine.events = read(folder.events) or dict(NO_EVENTS)
        power = self._enclosure.adopt(folder, spec)
        if power is not None:
            self._attend(machine, power)

    def _power_on(self, machine: TwinMachine) -> None:
        if machine.power is not None:
            if machine.power.alive:
                return
            self._power_off(machine)
        power = self._enclosure.power_on(machine.folder, machine.spec, plan(machine.spec.custom_data))
        self._attend(machine, power)
        try:
            power.go(machine.folder)
        except BaseException:
            self._power_off(machine)
            raise

    def _attend(self, machine: TwinMachine, power: RunningPower) -> None:
        machine.power = power
        machine.off.clear()
        subject = MetadataSubject(
            instance_document(machine.spec.facts, machine.spec.address),
            events=lambda: machine.events,
            acknowledge=partial(self._acknowledged, machine.spec.name),
            token=partial(self._token_for, machine.spec.name),
            wake_events=partial(self._wake_events, machine),
        )
        machine.listeners.append(Listener(power.metadata, partial(serve, subject)))
        for port in sorted(self._ports):
            self._serve(machine, power, port, partial(relay_to, port))
        for port, handle in self._served.items():
            self._serve(machine, power, port, handle)

    def _serve(self, machine: TwinMachine, power: RunningPower, port: int, handle: Handle) -> None:
        if not machine.spec.outbound:
            return
        with suppress(OSError):  # a program of the machine uses the port, or it has just died
            listening = self._enclosure.listen(power, port)
            if listening is not None:
                machine.listeners.append(Listener(listening, handle))

    def _power_off(self, machine: TwinMachine) -> None:
        power, machine.power = machine.power, None
        machine.off.set()
        if power is not None:
            self._enclosure.power_off(power, machine.folder)
        for listener in machine.listeners:
            listener.close()
        machine.listeners.clear()

    def _wake_events(self, machine: TwinMachine) -> None:
        """The first request enables the service for the machine; concurrent ones wait as long."""
        with machine.waking:
            if not machine.awake:
                machine.awake = not machine.off.wait(self._first_events_s(machine.spec.name))


def _lock(folder: Path) -> int:
    key = claim(folder / "lock")
    if key is None:
        raise TwinFailed(f"a running twin uses the machines in {folder}", hint="stoker twin down")
    return key


class TwinMachine:
    """`lock` is held during power changes; `power` is None while it is off."""

    def __init__(self, spec: MachineSpec, folder: MachineFolder) -> None:
        self.spec = spec
        self.folder = folder
        self.lock = threading.RLock()
        self.power: RunningPower | None = None
        self.off = threading.Event()
        self.events: Mapping[str, Any] = dict(NO_EVENTS)
        self.listeners: list[Listener] = []
        self.commands = 0
        self.waking = threading.Lock()
        self.awake = False  # Scheduled Events was requested once
