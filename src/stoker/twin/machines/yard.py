"""All machines of a twin: created, found again, watched, and the ways into them."""

from __future__ import annotations

import logging
import os
import shlex
import socket
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from stoker.errors import TwinFailed
from stoker.files import claim
from stoker.twin.machines import Acknowledged, MachineSpec, TokenFor
from stoker.twin.machines.guest.processes import end
from stoker.twin.machines.metadata import NO_EVENTS, MetadataSubject, instance_document, plan, serve
from stoker.twin.machines.outward import Handle, Listener, join, relay_to
from stoker.twin.machines.power import Enclosure, MachineFolder, RunningPower, read, write

PORT = 22
PROGRAM = "/usr/sbin/sshd"
LACKING = "ssh is unavailable, because this computer has no sshd: apt-get install openssh-server sudo"
_CONFIG = """\
HostKey /etc/ssh/twin_host_key
PubkeyAuthentication yes
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
PermitRootLogin no
PidFile none
Subsystem sftp internal-sftp
"""


def preparation(facts: Mapping[str, Any]) -> str:
    """A repeatable shell script for root: the account, its keys, and the machine's own key."""
    user = str((facts.get("osProfile") or {}).get("adminUsername") or "azureuser")
    keys = "".join(f"{one['keyData'].strip()}\n" for one in facts.get("publicKeys") or () if one.get("keyData"))
    home = f"/home/{user}"
    return f"""\
set -e
getent passwd {user} >/dev/null || useradd -m -d {home} -s /bin/bash -p '*' {user}
getent passwd sshd >/dev/null || useradd --system -d /run/sshd -s /usr/sbin/nologin sshd
mkdir -p -m 700 {home}/.ssh
printf %s {shlex.quote(keys)} > {home}/.ssh/authorized_keys
chmod 600 {home}/.ssh/authorized_keys
chown -R {user}: {home}/.ssh
mkdir -p /etc/sudoers.d /run/sshd
echo '{user} ALL=(ALL) NOPASSWD:ALL' > /etc/sudoers.d/90-{user}
chmod 440 /etc/sudoers.d/90-{user}
[ -f /etc/ssh/twin_host_key ] || ssh-keygen -q -t ed25519 -N '' -f /etc/ssh/twin_host_key
printf %s {shlex.quote(_CONFIG)} > /etc/ssh/twin_sshd_config
"""


def serve_ssh(enter: Sequence[str], variables: Mapping[str, str], connection: int, console: Path) -> None:
    """Serves one connection. `enter` is the command prefix that enters the machine."""
    words = [*enter, PROGRAM, "-i", "-e", "-f", "/etc/ssh/twin_sshd_config"]
    with console.open("ab") as said:
        subprocess.run(
            words,
            env=dict(variables),
            stdin=connection,
            stdout=connection,
            stderr=said,
            start_new_session=True,
            cwd="/",
        )


TOOK_TOO_LONG = 124  # the exit code of `timeout`
_FOLDER = "var/lib/waagent/run-command"


def run_script(
    enclosure: Enclosure, power: RunningPower, folder: MachineFolder, number: int, script: str, timeout_s: float
) -> tuple[int, str, str]:
    """Exit code, stdout and stderr. Background processes continue, unless it timed out."""
    place = folder.root / _FOLDER / str(number)
    file = _write(place, enclosure.rewritten(folder, script))
    words, variables = enclosure.command(power, folder, file)
    code = _run(words, variables, place, timeout_s)
    out, err = ((place / name).read_text(errors="replace") for name in ("stdout", "stderr"))
    return code, out, err


def _write(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    file = folder / "script.sh"
    file.write_text(text if text.startswith("#!") else f"#!/bin/sh\n{text}", encoding="utf-8")
    file.chmod(0o700)
    return file


def _run(words: list[str], variables: dict[str, str], folder: Path, timeout_s: float) -> int:
    """Output goes to files: background processes may keep them open."""
    mark = os.urandom(16).hex()
    with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
        child = subprocess.Popen(
            words,
            env={**variables, "INVOCATION_ID": mark},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
            cwd="/",
        )
        try:
            code = child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            end(f"INVOCATION_ID={mark}", child.pid)
            child.wait()
            return TOOK_TOO_LONG
    return code if code >= 0 else 128 - code


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
        if port == PORT:
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
        if not Path(PROGRAM).exists():
            log.warning(LACKING)
            return
        with machine.lock:  # two first connections would create the account twice
            code, _, err = self.run_command(machine.spec.name, preparation(machine.spec.facts), 30.0)
        if code:
            log.warning("could not prepare the sshd of machine %s: %s", machine.spec.name, err.strip())
            return
        serve_ssh(*way, connection.fileno(), machine.folder.console)

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
