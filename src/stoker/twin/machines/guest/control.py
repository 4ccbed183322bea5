"""The verbs of `systemctl` that init supports, and their answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from stoker.twin.machines.guest.places import START_AT_BOOT, GuestFolders
from stoker.twin.machines.guest.services import GuestService, Services
from stoker.twin.machines.guest.units import unit

_CODES = {"is-active": 3, "is-failed": 1}


@dataclass
class ControlAnswer:
    """Sent once all of `waiting` have settled. `power` is `off` or `reboot` where that was requested."""

    code: int = 0
    out: str = ""
    err: str = ""
    waiting: list[GuestService] = field(default_factory=list)
    power: str = ""


class GuestControl:
    def __init__(self, places: GuestFolders, services: Services) -> None:
        self._places = places
        self._services = services

    def answer(self, words: Sequence[str]) -> ControlAnswer:
        plain = [word for word in words if not word.startswith("-")]
        verb, names = (plain[0], plain[1:]) if plain else ("list-units", [])
        if verb in ("poweroff", "halt", "reboot"):
            return ControlAnswer(power="reboot" if verb == "reboot" else "off")
        if verb in ("daemon-reload", "reset-failed", "is-system-running"):
            return ControlAnswer(out="running\n" if verb == "is-system-running" else "")
        action = getattr(self, f"_{verb.replace('-', '_')}", None)
        if action is None:
            return ControlAnswer(1, err=f"this init does not support `systemctl {verb}`\n")
        answer = ControlAnswer()
        for name in names:
            full = name if "." in name else f"{name}.service"
            try:
                action(full, answer, "--now" in words)
            except FileNotFoundError:
                answer.code = 4 if verb.startswith(("is-", "status")) else 5
                answer.err += f"Unit {full} not found.\n"
        return answer

    def _start(self, name: str, answer: ControlAnswer, now: bool) -> None:  # noqa: ARG002  # all verbs are called alike
        answer.waiting.append(self._services.start(name))

    def _stop(self, name: str, answer: ControlAnswer, now: bool) -> None:  # noqa: ARG002
        answer.waiting.append(self._services.stop(name))

    def _restart(self, name: str, answer: ControlAnswer, now: bool) -> None:  # noqa: ARG002
        answer.waiting.append(self._services.restart(name))

    def _enable(self, name: str, answer: ControlAnswer, now: bool) -> None:
        file = self._places.unit_file(name)
        for target in unit(name, file.read_text(encoding="utf-8")).wanted_by:
            link = self._places.path(START_AT_BOOT) / f"{target}.wants" / name
            link.parent.mkdir(parents=True, exist_ok=True)
            if not link.is_symlink():
                link.symlink_to(file)
                answer.err += f"Created symlink {link} → {file}.\n"
        if now:
            self._start(name, answer, now)

    def _disable(self, name: str, answer: ControlAnswer, now: bool) -> None:
        for link in self._places.path(START_AT_BOOT).glob(f"*.wants/{name}"):
            link.unlink()
            answer.err += f"Removed {link}.\n"
        if now:
            self._stop(name, answer, now)

    def _is_enabled(self, name: str, answer: ControlAnswer, now: bool) -> None:  # noqa: ARG002
        self._places.unit_file(name)
        enabled = name in self._places.enabled()
        answer.out += "enabled\n" if enabled else "disabled\n"
        answer.code = max(answer.code, 0 if enabled else 1)

    def _is_active(self, name: str, answer: ControlAnswer, now: bool) -> None:  # noqa: ARG002
        state = self._services.find(name).state
        answer.out += f"{state}\n"
        answer.code = max(answer.code, 0 if state == "active" else _CODES["is-active"])

    def _is_failed(self, name: str, answer: ControlAnswer, now: bool) -> None:  # noqa: ARG002
        state = self._services.find(name).state
        answer.out += f"{state}\n"
        answer.code = max(answer.code, 0 if state == "failed" else _CODES["is-failed"])

    def _status(self, name: str, answer: ControlAnswer, now: bool) -> None:  # noqa: ARG002
        service = self._services.find(name)
        answer.out += f"{name} - {service.unit.description}\n     Active: {service.state} ({service.result})\n"
        answer.out += f"   Main PID: {service.pid}\n" if service.pid else ""
        answer.code = max(answer.code, 0 if service.state == "active" else _CODES["is-active"])

    def _show(self, name: str, answer: ControlAnswer, now: bool) -> None:  # noqa: ARG002
        service = self._services.find(name)
        answer.out += f"Id={name}\nActiveState={service.state}\nResult={service.result}\nMainPID={service.pid}\n"
