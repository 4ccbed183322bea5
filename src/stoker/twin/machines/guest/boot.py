"""The first process of a machine: isolates it, runs cloud-init, supervises services, answers `systemctl`."""

from __future__ import annotations

import json
import os
import selectors
import shutil
import signal
import socket
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stoker.twin.machines.guest.cloudinit import CloudInit, Plan
from stoker.twin.machines.guest.processes import SOCKET, SOCKET_FOLDER, START_AT_BOOT, GuestFolders, end
from stoker.twin.machines.guest.services import GuestService, Services, unit

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


_GENTLE_S = 2.0  # for processes to exit by themselves when the machine shuts down


class Init:
    """`mark` is in the environment of every process of a machine without isolation, to find them by."""

    def __init__(self, places: GuestFolders, plan: Plan, environment: Mapping[str, str], mark: str = "") -> None:
        self._mark = mark
        self._places = places
        self._cloud = CloudInit(places, plan, environment)
        self._services = Services(places, environment)
        self._control = GuestControl(places, self._services)
        self._stages = ["early", "final"]
        self._stage = 0  # the pid of the current cloud-init stage
        self._asking: list[tuple[socket.socket, ControlAnswer]] = []
        self._power = ""

    def run(self) -> str:
        """Until the machine shuts down: `off` or `reboot`."""
        with selectors.DefaultSelector() as selector, self._listen() as listener:
            awake = _wake_on_children()
            selector.register(awake, selectors.EVENT_READ)
            selector.register(listener, selectors.EVENT_READ)
            self._next_stage()
            while not self._power:
                wait_s = max(0.0, min(self._services.next_at() - time.monotonic(), 3600.0))
                for key, _ in selector.select(wait_s):
                    if key.fileobj is listener:
                        self._accept(listener)
                    else:
                        awake.recv(4096)
                self._reap()
                self._services.tick(time.monotonic())
                self._reply()
        self._end_everything()
        return self._power

    def _listen(self) -> socket.socket:
        folder = self._places.path(SOCKET_FOLDER)
        folder.mkdir(parents=True, exist_ok=True)
        before = Path.cwd()
        os.chdir(folder)
        Path(SOCKET).unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(SOCKET)
        os.chdir(before)
        listener.listen(64)
        return listener

    def _next_stage(self) -> None:
        """In a separate process, because it waits for its scripts, and init must not."""
        stage = self._stages.pop(0)
        self._stage = os.fork()
        if self._stage == 0:
            _run_and_exit(getattr(self._cloud, stage))

    def _accept(self, listener: socket.socket) -> None:
        channel, _ = listener.accept()
        channel.settimeout(1.0)
        try:
            with channel.makefile("rb") as lines:
                words = [str(word) for word in json.loads(lines.readline())]
        except (OSError, ValueError):
            channel.close()
            return
        answer = self._control.answer(words)
        self._power = answer.power or self._power
        self._asking.append((channel, answer))

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                if pid == self._stage:
                    self._after_stage()
                else:
                    self._services.reap(pid, status)

    def _after_stage(self) -> None:
        self._stage = 0
        if not self._stages:
            return
        self._next_stage()
        for name in self._places.enabled():
            with suppress(FileNotFoundError):  # a link to a missing unit
                self._services.start(name)

    def _reply(self) -> None:
        waiting = []
        for channel, answer in self._asking:
            if not all(service.settled for service in answer.waiting):
                waiting.append((channel, answer))
                continue
            failed = [service.unit.name for service in answer.waiting if service.state == "failed"]
            err = answer.err + "".join(f"Job for {name} failed. See `journalctl -u {name}`.\n" for name in failed)
            text = json.dumps({"code": 1 if failed else answer.code, "out": answer.out, "err": err})
            with suppress(OSError), channel:
                channel.sendall(text.encode() + b"\n")
        self._asking = waiting

    def _end_everything(self) -> None:
        """Only the first process of a pid namespace may signal all processes."""
        if os.getpid() != 1:
            end(self._mark)
            return
        until = time.monotonic() + _GENTLE_S
        with suppress(ProcessLookupError):
            os.kill(-1, signal.SIGTERM)
        while time.monotonic() < until and _children_left():
            time.sleep(0.01)
        with suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        while _children_left():
            time.sleep(0.002)


def _wake_on_children() -> socket.socket:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(theirs.detach(), warn_on_full_buffer=False)
    return ours


def _run_and_exit(stage: object) -> None:
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        stage()  # type: ignore[operator]  # a bound method without arguments
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _children_left() -> bool:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


SHIMS = ("systemctl", "journalctl", "cloud-init", "poweroff", "halt", "reboot")  # first in PATH


def main(folder: Path) -> int:
    order = json.loads((folder / "order.json").read_bytes())
    plan = json.loads((folder / "plan.json").read_bytes())
    shim = (Path(__file__).parent / "shim.py").read_text(encoding="utf-8")
    channel = socket.socket(fileno=os.dup(0))
    os.set_inheritable(order["lock_fd"], False)  # held by the machine's own processes, not by its services
    if order["walled"]:
        return _hold(order, plan, shim, channel, folder)
    if sys.platform == "linux":
        from stoker.twin.machines.guest.walls import adopt_orphans  # where there is such a call

        adopt_orphans()
    channel.sendall(b"%d\n" % os.getpid())
    return _live(order, plan, shim, channel)


def _hold(order: Mapping[str, Any], plan: Mapping[str, Any], shim: str, channel: socket.socket, folder: Path) -> int:
    """Stays outside, in the network of the switch, which exists as long as one of these; ends with its machine."""
    from stoker.twin.machines.guest import walls  # Linux only

    walls.make_network(order, folder)
    walls.unshare(walls.NEW_PIDS)
    child = os.fork()
    if child:
        walls.enter(int(order["switch_fd"]), walls.NEW_NETWORK)
        os.close(int(order["switch_fd"]))
        channel.sendall(b"%d\n" % child)
        channel.close()
        os.close(0)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    walls.die_with_parent()
    os.close(int(order["switch_fd"]))
    walls.make_file_system(order)
    walls.name_hosts(order["hostname"], order["address"])
    return _live(order, plan, shim, channel)


def _live(order: Mapping[str, Any], plan: Mapping[str, Any], shim: str, channel: socket.socket) -> int:
    places = GuestFolders("" if order["walled"] else order["root"])
    for name in ("/etc/systemd/system", "/var/log/journal", "/var/tmp", "/run", "/root", "/home", "/tmp"):
        places.path(name).mkdir(parents=True, exist_ok=True)
    _install_shims(places, shim, order)
    channel.sendall(b"up\n")
    if channel.recv(3) != b"go\n":
        return 1
    channel.close()
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    while Init(places, plan, order["environment"], order["mark"]).run() == "reboot":
        shutil.rmtree(places.path("/run/cloud-init"), ignore_errors=True)
    return 0


def _install_shims(places: GuestFolders, shim: str, order: Mapping[str, Any]) -> None:
    """Over the real ones, which would not find a systemd here."""
    text = f"#!{order['python']} -IS\n" + shim.replace('ROOT = ""', f"ROOT = {places.root!r}", 1)
    first = places.path("/usr/bin/systemctl")
    first.parent.mkdir(parents=True, exist_ok=True)
    if not first.exists() or first.read_bytes() != text.encode():
        first.unlink(missing_ok=True)
        first.write_text(text, encoding="utf-8")
        first.chmod(0o755)
    for name in SHIMS:
        link = places.path("/usr/local/sbin") / name
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.is_symlink():
            link.unlink(missing_ok=True)
            link.symlink_to(first)


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
