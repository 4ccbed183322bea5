"""The first process of a machine: runs cloud-init, supervises the services, answers `systemctl`, reaps zombies."""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import sys
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from stoker.twin.machines.guest.cloudinit import CloudInit, Plan
from stoker.twin.machines.guest.control import ControlAnswer, GuestControl
from stoker.twin.machines.guest.marked import end
from stoker.twin.machines.guest.places import SOCKET, SOCKET_FOLDER, GuestFolders
from stoker.twin.machines.guest.services import Services

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
