"""What this init supports of systemd unit files: services, without dependencies, sockets or timers.

`After=`, `Requires=` and the like are ignored: everything that is enabled starts at once.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

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
