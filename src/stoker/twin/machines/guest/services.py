"""The services of a machine: started, watched, restarted as their units say, and stopped with all their children."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from stoker.twin.machines.guest.marked import members, send
from stoker.twin.machines.guest.places import GuestFolders
from stoker.twin.machines.guest.spawning import spawn
from stoker.twin.machines.guest.units import Unit, UnitCommand, expanded, unit

_LOOK_S = 0.02  # between two checks whether a stopped service's processes are gone


@dataclass
class GuestService:
    """`state` is systemd's term. `steps` are the remaining commands, the last being the service itself."""

    unit: Unit
    state: str = "inactive"
    pid: int = 0
    steps: list[UnitCommand] = field(default_factory=list)
    lenient: bool = False
    mark: str = ""
    starts: list[float] = field(default_factory=list)
    next_at: float = float("inf")
    kill_at: float = float("inf")
    again: bool = False  # to be started once its processes are gone
    result: str = "success"

    @property
    def settled(self) -> bool:
        return self.state in ("active", "inactive", "failed")


class Services:
    """One thread: init calls `reap` for each exited child and `tick` at `next_at`."""

    def __init__(self, places: GuestFolders, environment: Mapping[str, str]) -> None:
        self._places = places
        self._environment = environment
        self._services: dict[str, GuestService] = {}

    def find(self, name: str) -> GuestService:
        """Reads the unit file again, as after `daemon-reload`. Raises `FileNotFoundError` where it is missing."""
        text = self._places.unit_file(name).read_text(encoding="utf-8", errors="replace")
        known = self._services.setdefault(name, GuestService(unit(name, text)))
        known.unit = unit(name, text)
        return known

    def start(self, name: str) -> GuestService:
        service = self.find(name)
        if service.state in ("active", "activating"):
            return service
        if service.state == "deactivating":
            service.again = True
            return service
        service.starts.clear()
        self._begin(service)
        return service

    def stop(self, name: str) -> GuestService:
        service = self.find(name)
        service.again, service.next_at = False, float("inf")
        if service.state in ("active", "activating"):
            self._end(service, "success")
        return service

    def restart(self, name: str) -> GuestService:
        service = self.stop(name)
        return self.start(name) if service.settled else self._later(service)

    def reap(self, pid: int, status: int) -> None:
        service = next((each for each in self._services.values() if each.pid == pid), None)
        if service is None:
            return
        service.pid = 0
        code = os.waitstatus_to_exitcode(status)
        if service.state == "deactivating":
            service.next_at = time.monotonic()
        else:
            self._after_step(service, code)

    def tick(self, now: float) -> None:
        for service in self._services.values():
            if service.next_at <= now:
                service.next_at = float("inf")
                if service.state == "deactivating":
                    self._look(service, now)
                else:
                    self._begin(service)

    def next_at(self) -> float:
        return min((service.next_at for service in self._services.values()), default=float("inf"))

    def _begin(self, service: GuestService) -> None:
        now, what = time.monotonic(), service.unit
        service.starts = [at for at in service.starts if now - at < what.burst_s] + [now]
        if not what.commands or (what.burst_s and what.burst and len(service.starts) > what.burst):
            service.state, service.result = "failed", "start-limit-hit" if what.commands else "bad-setting"
            return
        service.mark = os.urandom(16).hex()
        service.steps = [*what.before, *what.commands]
        service.state, service.result = "activating", "success"
        self._step(service)

    def _step(self, service: GuestService) -> None:
        command = service.steps.pop(0)
        service.lenient = command.lenient
        variables = self._variables(service)
        output = os.open(self._output(service.unit), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)
        words = expanded(command, variables)
        folder = service.unit.folder.lstrip("-") or self._places("/")
        service.pid = spawn(words, variables, output, folder=folder, user=service.unit.user)
        os.close(output)
        if not service.steps and service.unit.kind != "oneshot":
            service.state = "active"

    def _after_step(self, service: GuestService, code: int) -> None:
        clean = code == 0 or service.lenient
        if service.steps and clean:
            self._step(service)
        elif service.unit.kind == "oneshot" and clean and service.unit.remains:
            service.state = "active"
        else:
            # SIGTERM and the like are a clean exit of a service, but not of a step before it.
            clean = clean or (not service.steps and -code in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
            service.again = service.unit.restarts_after(clean=clean, signalled=code < 0)
            self._end(service, "success" if clean else "exit-code" if code > 0 else "signal")

    def _end(self, service: GuestService, result: str) -> None:
        service.steps.clear()
        service.state, service.result = "deactivating", result
        now = time.monotonic()
        service.kill_at = now + service.unit.stop_s
        send(self._processes(service), signal.SIGTERM)
        self._look(service, now)

    def _look(self, service: GuestService, now: float) -> None:
        left = self._processes(service)
        if left or service.pid:  # a dead process is gone only after it was reaped
            if now >= service.kill_at:
                send(left, signal.SIGKILL)
            service.next_at = now + _LOOK_S
            return
        service.state = "inactive" if service.result == "success" else "failed"
        if service.again:
            service.again = False
            service.state = "activating"
            service.next_at = now + service.unit.restart_s

    def _later(self, service: GuestService) -> GuestService:
        service.again = True
        return service

    def _processes(self, service: GuestService) -> list[int]:
        if not service.unit.kill_all:
            return [service.pid] if service.pid else []
        return members(f"INVOCATION_ID={service.mark}", service.pid or None)

    def _variables(self, service: GuestService) -> dict[str, str]:
        variables = {**self._environment, "INVOCATION_ID": service.mark, **service.unit.environment}
        for name in service.unit.environment_files:
            with suppress(OSError):
                lines = self._places.path(name.lstrip("-")).read_text(encoding="utf-8").splitlines()
                pairs = (line.strip().partition("=") for line in lines if "=" in line and not line.startswith("#"))
                variables.update((key, value.strip("\"'")) for key, _, value in pairs)
        return variables

    def _output(self, what: Unit) -> str:
        if what.output.startswith("/"):
            return what.output
        return str(self._places.journal(what.name))
