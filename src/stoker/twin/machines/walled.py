"""Isolated machines: each in its own namespaces, on a switch that is a namespace, too. Linux, root.

Nothing of it has a name on the host. The switch exists as long as a machine is connected, so that a host is unchanged
after the last process of a twin was killed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from stoker.errors import TwinFailed
from stoker.twin.machines import MachineSpec
from stoker.twin.machines.guest.walls import METADATA_ADDRESS, inside, listening, network_of, new_network
from stoker.twin.machines.power import MachineFolder, RunningPower, boot, hostname, python, read, recorded, trust, write

# The operating system. Home and work folders are not included.
IMAGE = (
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/usr",
    "/etc",
    "/opt",
    "/var/lib/dpkg",
    "/var/lib/apt",
)
# For the host's Podman in a machine, which has no systemd.
PODMAN = '[engine]\nruntime = "runc"\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n'
ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
_FOLDERS = ("proc", "sys", "dev", "run", "tmp", "root", "home", "mnt", "srv", "var/log", "var/tmp", "var/cache")


class Walled:
    """`shown` are folders of the host that machines see besides the operating system, like a larger image."""

    def __init__(
        self,
        yard: Path,
        shown: tuple[str, ...] = (),
        authority: Path | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self._authority = authority
        self._environment = {**ENVIRONMENT, **(variables or {})}
        self._shown = outermost((*IMAGE, sys.base_prefix, *shown))
        if _is_below(str(yard), self._shown):
            raise TwinFailed(
                f"machines cannot be stored in {yard}, because machines can see that folder",
                hint="export STOKER_HOME=$HOME/.stoker",
            )
        self._lock = threading.Lock()
        self._switch = -1
        self._on: set[str] = set()  # machines on the switch

    def power_on(self, folder: MachineFolder, spec: MachineSpec, plan: Mapping[str, Any]) -> RunningPower:
        self._make_disk(folder)
        write(folder.plan, plan)
        switch = self._join(folder.name, new_network)
        try:
            power = boot(folder, self._order(folder, spec, switch), [switch])
        except BaseException:
            self._leave(folder.name)
            raise
        try:
            power.network = network_of(power.init.pid)
            power.metadata = inside(power.network, partial(listening, METADATA_ADDRESS, 80))
        except BaseException:
            self.power_off(power, folder)
            raise
        return power

    def adopt(self, folder: MachineFolder, spec: MachineSpec) -> RunningPower | None:  # noqa: ARG002  # as in the contract
        found = recorded(folder)
        if found is None:
            return None
        holder, init = found
        try:
            self._join(folder.name, lambda: network_of(holder.pid))
            network = network_of(init.pid)
        except FileNotFoundError:  # it has just died
            self._leave(folder.name)
            return None
        return RunningPower(holder, init, inside(network, partial(listening, METADATA_ADDRESS, 80)), network=network)

    def listen(self, power: RunningPower, port: int) -> socket.socket | None:
        return inside(power.network, partial(listening, "127.0.0.1", port))

    def way_in(self, power: RunningPower, folder: MachineFolder) -> tuple[list[str], dict[str, str]]:
        target = ["--target", str(power.init.pid), "--mount", "--uts", "--ipc", "--net", "--pid"]
        return ["nsenter", *target, "--"], dict(read(folder.order)["environment"])

    def connected(self, power: RunningPower, address: str, port: int) -> socket.socket:
        return inside(power.network, partial(socket.create_connection, (address, port), 10.0))

    def command(self, power: RunningPower, folder: MachineFolder, script: Path) -> tuple[list[str], dict[str, str]]:
        words, variables = self.way_in(power, folder)
        return [*words, f"/{script.relative_to(folder.root)}"], variables

    def rewritten(self, folder: MachineFolder, script: str) -> str:  # noqa: ARG002  # nothing is elsewhere here
        return script

    def power_off(self, power: RunningPower, folder: MachineFolder) -> None:
        """The kernel kills all processes of a pid namespace whose first process is gone, before that one is reaped."""
        for process in (power.init, power.holder):
            if process.alive:
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
                process.wait()
        power.wait()
        self.let_go(power, folder)

    def let_go(self, power: RunningPower, folder: MachineFolder) -> None:
        if power.network >= 0:
            os.close(power.network)
        self._leave(folder.name)

    def _make_disk(self, folder: MachineFolder) -> None:
        for name in _FOLDERS:
            (folder.root / name).mkdir(parents=True, exist_ok=True)
        for name in ("tmp", "var/tmp"):
            (folder.root / name).chmod(0o1777)
        (folder.root / "root").chmod(0o700)
        for lower, upper, work in self._layers(folder):
            fresh = not Path(upper).exists()
            Path(upper).mkdir(parents=True, exist_ok=True)
            Path(work).mkdir(parents=True, exist_ok=True)
            if fresh and lower == "/etc":
                _hide(Path(upper) / "systemd" / "system")  # the services of the host do not belong to the machine
                _write_text(Path(upper) / "containers" / "containers.conf", PODMAN)

    def _layers(self, folder: MachineFolder) -> list[list[str]]:
        layers = folder.disk / "layers"
        real = [name for name in self._shown if Path(name).is_dir() and not Path(name).is_symlink()]
        return [[name, *(str(layers / quote(name, safe="") / part) for part in ("upper", "work"))] for name in real]

    def _order(self, folder: MachineFolder, spec: MachineSpec, switch: int) -> dict[str, Any]:
        return {
            "walled": True,
            "root": str(folder.root),
            "layers": self._layers(folder),
            "links": self._links(),
            "hostname": hostname(spec),
            "address": spec.address,
            "bridge": f"br{hashlib.sha256(spec.network.encode()).hexdigest()[:8]}",
            "wire": f"v{os.urandom(4).hex()}",
            "switch_fd": switch,
            "environment": {**self._environment, **trust(folder, self._authority, "")},
            "mark": "",
            "python": python(),
        }

    def _links(self) -> dict[str, str]:
        """Every image has a `python3`; where the host's is elsewhere, it is the interpreter of this process."""
        links = {name: str(Path(name).readlink()) for name in self._shown if Path(name).is_symlink()}
        found = shutil.which("python3", path=ENVIRONMENT["PATH"])
        return links if found else {**links, "/usr/local/bin/python3": python()}

    def _join(self, name: str, switch: Any) -> int:
        with self._lock:
            if self._switch < 0:
                self._switch = switch()
            self._on.add(name)
            return self._switch

    def _leave(self, name: str) -> None:
        with self._lock:
            self._on.discard(name)
            if not self._on and self._switch >= 0:
                os.close(self._switch)
                self._switch = -1


def outermost(folders: tuple[str, ...]) -> tuple[str, ...]:
    """Each once, without those inside another: two overlays cannot share a path."""
    once = tuple(dict.fromkeys(str(Path(name)) for name in folders))
    return tuple(name for name in once if not _is_below(name, tuple(other for other in once if other != name)))


def _write_text(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


def _hide(folder: Path) -> None:
    folder.mkdir(parents=True)
    os.setxattr(folder, "trusted.overlay.opaque", b"y")


def _is_below(path: str, folders: tuple[str, ...]) -> bool:
    return any(Path(path).is_relative_to(folder) for folder in folders)
