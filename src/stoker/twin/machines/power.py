"""A machine that is on: its processes, its metadata socket, and what a kind of enclosure does for it."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from stoker.errors import TwinFailed
from stoker.files.lock import claim
from stoker.twin.machines import MachineSpec
from stoker.twin.machines.folder import MachineFolder, write
from stoker.twin.machines.process import Process

_BOOT_S = 30.0  # for a machine to say which process is its first; a hundredth of that is usual
# The guest is loaded without the packages around it: they hold what only the control plane needs.
_LOADER = """
import sys, types
for name, folder in zip(("stoker", "stoker.twin", "stoker.twin.machines"), sys.argv[1:4]):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [folder]
from pathlib import Path
from stoker.twin.machines.guest.boot import main
raise SystemExit(main(Path(sys.argv[4])))
"""


@dataclass(slots=True)
class Power:
    """`holder` ends with its machine; in one without walls it is the same process as `init`."""

    holder: Process
    init: Process
    metadata: socket.socket
    channel: socket.socket | None = None
    child: subprocess.Popen[bytes] | None = None
    network: int = -1  # a descriptor of its network, where it has its own

    @property
    def alive(self) -> bool:
        return self.child.poll() is None if self.child else self.holder.alive

    def go(self, folder: MachineFolder) -> None:
        """The metadata service is there: cloud-init may begin. Returns when the machine's file system is there, too."""
        if self.channel:
            if not _said(self.channel, folder):
                self.wait()
                raise TwinFailed(f"machine {folder.name} did not boot: {last_words(folder.console)}")
            self.channel.sendall(b"go\n")
            self.channel.close()
            self.channel = None

    def wait(self) -> None:
        if self.child:
            self.child.wait()
        self.init.wait()
        self.holder.wait()


class Enclosure(Protocol):
    """What is between a machine and the host. Every method may be called from any thread."""

    def power_on(self, folder: MachineFolder, spec: MachineSpec, plan: Mapping[str, Any]) -> Power: ...

    def adopt(self, folder: MachineFolder, spec: MachineSpec) -> Power | None:
        """The machine that a killed twin left running, or None where it is off."""

    def listen(self, power: Power, port: int) -> socket.socket | None:
        """A socket on the machine's loopback. None where that is the host's."""

    def way_in(self, power: Power, folder: MachineFolder) -> tuple[list[str], dict[str, str]] | None:
        """Words that bring a command into the machine, and its variables. None where it has no walls to get through."""

    def connected(self, power: Power, address: str, port: int) -> socket.socket | None:
        """A socket to a port of the machine's own address. None where that is the host's."""

    def command(self, power: Power, folder: MachineFolder, script: Path) -> tuple[list[str], dict[str, str]]:
        """Words and variables that run a file of its disk inside the machine."""

    def rewritten(self, folder: MachineFolder, script: str) -> str:
        """A script from outside, with the machine's paths as they are inside."""

    def power_off(self, power: Power, folder: MachineFolder) -> None: ...

    def let_go(self, power: Power, folder: MachineFolder) -> None:
        """This process holds nothing of the machine any more; it goes on or is gone."""


def boot(folder: MachineFolder, order: Mapping[str, Any], descriptors: Sequence[int] = ()) -> Power:
    """Starts the machine up to where it waits for the word. `metadata` is still to be filled in."""
    lock = _claim(folder)
    try:
        write(folder.order, {**order, "lock_fd": lock})
        child, channel = _start(folder, order, [*descriptors, lock])
    finally:
        os.close(lock)
    init = Process.now(int(_said(channel, folder) or child.pid))
    power = Power(Process.now(child.pid), init, channel, channel, child)
    write(folder.power, {"holder": list(_pair(power.holder)), "init": list(_pair(init))})
    return power


def _claim(folder: MachineFolder) -> int:
    """Waits for what a killed twin had half started to notice and to be gone: two cannot have one disk."""
    lock = claim(folder.lock, _BOOT_S, pause_s=0.005)
    if lock is None:
        raise TwinFailed(f"the disk of machine {folder.name} is in use")
    return lock


def _start(
    folder: MachineFolder, order: Mapping[str, Any], descriptors: Sequence[int]
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    ours, theirs = socket.socketpair()
    here = Path(__file__).parent
    loader = [*map(str, (here.parents[1], here.parent, here)), str(folder.path)]
    with theirs, folder.console.open("ab") as console:
        child = subprocess.Popen(
            [python(), "-I", "-S", "-c", _LOADER, *loader],
            stdin=theirs.fileno(),
            stdout=console,
            stderr=console,
            pass_fds=descriptors,
            env=dict(order["environment"]),
            start_new_session=True,
            cwd="/",
        )
    ours.settimeout(_BOOT_S)
    return child, ours


def recorded(folder: MachineFolder) -> tuple[Process, Process] | None:
    """Holder and init of the last time it was powered on, where the holder is alive."""
    try:
        data = json.loads(folder.power.read_bytes())
    except (OSError, ValueError):
        return None
    holder, init = Process(*data["holder"]), Process(*data["init"])
    return (holder, init) if holder.alive else None


def python() -> str:
    """The interpreter itself, not the virtual environment around it."""
    return str(Path(getattr(sys, "_base_executable", sys.executable)).resolve())


def hostname(spec: MachineSpec) -> str:
    name = str((spec.facts.get("osProfile") or {}).get("computerName") or spec.name.rpartition("/")[2])
    return re.sub(r"[^A-Za-z0-9-]+", "-", name).strip("-")[:63] or "machine"


def last_words(console: Path) -> str:
    lines = console.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"


def _said(channel: socket.socket, folder: MachineFolder) -> bytes:
    """A line from the machine, byte by byte, for the next one is somebody else's to read. Empty when it has died."""
    line = b""
    try:
        while not line.endswith(b"\n"):
            byte = channel.recv(1)
            if not byte:
                return b""
            line += byte
    except TimeoutError:
        raise TwinFailed(f"machine {folder.name} did not boot within {_BOOT_S:.0f} s") from None
    return line


def _pair(process: Process) -> tuple[int, str]:
    return process.pid, process.born
