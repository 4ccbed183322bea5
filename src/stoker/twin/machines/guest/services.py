"""The services of a machine: unit files as systemd has them, started, watched, restarted and stopped."""

from __future__ import annotations

import os
import re
import shlex
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from stoker.twin.machines.guest.processes import GuestFolders, members, send, spawn

Sections = dict[str, dict[str, list[str]]]

_YES = ("yes", "true", "on", "1")
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_TIME = re.compile(r"([\d.]+)\s*(ms|s|sec|min|m|h)?")
_SECONDS = {"ms": 0.001, "s": 1.0, "sec": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class UnitCommand:
    """`lenient`: it may fail, because of a leading `-`."""

    words: tuple[str, ...]
    lenient: bool = False


@dataclass(frozen=True)
class Unit:
    name: str
    description: str = ""
    kind: str = "simple"
    before: tuple[UnitCommand, ...] = ()
    commands: tuple[UnitCommand, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    environment_files: tuple[str, ...] = ()
    folder: str = ""
    user: str = ""
    restart: str = "no"
    restart_s: float = 0.1
    burst: int = 5
    burst_s: float = 10.0
    stop_s: float = 90.0
    kill_all: bool = True
    remains: bool = False
    output: str = ""
    wanted_by: tuple[str, ...] = ()

    def restarts_after(self, *, clean: bool, signalled: bool) -> bool:
        return {
            "always": True,
            "on-failure": not clean,
            "on-success": clean,
            "on-abnormal": signalled,
            "on-abort": signalled,
        }.get(self.restart, False)


def unit(name: str, text: str) -> Unit:
    found = sections(text)
    about, service, install = (found.get(section, {}) for section in ("Unit", "Service", "Install"))
    last = {key: values[-1] for key, values in service.items() if values}
    limits = {key: values[-1] for key, values in about.items() if values}
    return Unit(
        name,
        description=(about.get("Description") or [""])[-1],
        kind=last.get("Type", "simple"),
        before=_commands(service.get("ExecStartPre", [])),
        commands=_commands(service.get("ExecStart", [])),
        environment=dict(
            word.partition("=")[::2] for line in service.get("Environment", []) for word in shlex.split(line)
        ),
        environment_files=tuple(service.get("EnvironmentFile", [])),
        folder=last.get("WorkingDirectory", ""),
        user=last.get("User", ""),
        restart=last.get("Restart", "no"),
        restart_s=seconds(last.get("RestartSec", "100ms")),
        burst=int(limits.get("StartLimitBurst", "5")),
        burst_s=seconds(limits.get("StartLimitIntervalSec", "10")),
        stop_s=seconds(last.get("TimeoutStopSec", "90")),
        kill_all=last.get("KillMode", "control-group") in ("control-group", "mixed"),
        remains=last.get("RemainAfterExit", "no").lower() in _YES,
        output=last.get("StandardOutput", "").removeprefix("append:").removeprefix("file:"),
        wanted_by=tuple(word for line in install.get("WantedBy", []) for word in line.split()),
    )


def sections(text: str) -> Sections:
    """An empty value clears those before it, as in systemd."""
    found: Sections = {}
    section = ""
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        line = line.strip()
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1]
        elif "=" in line and not line.startswith(("#", ";")):
            key, _, value = line.partition("=")
            values = found.setdefault(section, {}).setdefault(key.strip(), [])
            values[:] = [*values, value.strip()] if value.strip() else []
    return found


def seconds(text: str) -> float:
    """`5`, `100ms`, `1min 30s`, `infinity`."""
    if text.strip() == "infinity":
        return float("inf")
    return sum(float(number) * _SECONDS[measure or "s"] for number, measure in _TIME.findall(text))


def expanded(command: UnitCommand, environment: Mapping[str, str]) -> list[str]:
    """`$NAME` alone is split into words; `${NAME}` is inserted as it is."""
    words: list[str] = []
    for word in command.words:
        if re.fullmatch(r"\$\w+", word):
            words += environment.get(word[1:], "").split()
        else:
            words.append(
                _VARIABLE.sub(lambda found: environment.get(found[1] or found[2], ""), word).replace("%%", "%")
            )
    return words


def _commands(lines: list[str]) -> tuple[UnitCommand, ...]:
    commands = []
    for line in lines:
        bare = line.lstrip("-@:+!")
        commands.append(UnitCommand(tuple(shlex.split(bare)), "-" in line[: len(line) - len(bare)]))
    return tuple(commands)


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
