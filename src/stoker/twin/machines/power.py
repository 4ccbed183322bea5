"""One machine: its folder on the host's disk, and its processes while it is on."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote, unquote

from stoker.errors import TwinFailed
from stoker.files import claim, write_whole
from stoker.twin.machines import MachineSpec


class MachineFolder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.order = path / "order.json"
        self.plan = path / "plan.json"
        self.power = path / "power.json"
        self.events = path / "events.json"
        self.lock = path / "power.lock"  # held by the machine itself while it is on or starting
        self.console = path / "console.log"
        self.disk = path / "disk"
        self.root = path / "disk" / "root"

    @classmethod
    def of(cls, yard: Path, name: str) -> MachineFolder:
        return cls(yard / quote(name, safe=""))

    @property
    def name(self) -> str:
        return unquote(self.path.name)

    def save_spec(self, spec: MachineSpec) -> None:
        """Written last: a folder without it is an incomplete machine, and is removed."""
        data = {
            "custom_data": base64.b64encode(spec.custom_data).decode(),
            "address": spec.address,
            "facts": dict(spec.facts),
            "network": spec.network,
            "outbound": spec.outbound,
        }
        write(self.path / "spec.json", data)

    def spec(self) -> MachineSpec | None:
        data = read(self.path / "spec.json")
        if not data:
            return None
        custom = base64.b64decode(data["custom_data"])
        outbound = data.get("outbound", True)
        return MachineSpec(self.name, custom, data["address"], data["facts"], data["network"], outbound)

    def remove(self) -> None:
        """Removes the specification first, so that the next twin completes an interrupted removal."""
        (self.path / "spec.json").unlink(missing_ok=True)
        shutil.rmtree(self.path, ignore_errors=True)


def write(path: Path, data: Mapping[str, Any]) -> None:
    write_whole(path, json.dumps(data), mode=0o600)  # custom data may contain secrets


def read(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return {}
    return found


_INSIDE = "var/lib/twin/trusted.pem"
_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
_BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")


def trust(folder: MachineFolder, authority: Path | None, root: str) -> dict[str, str]:
    """Writes them to the disk, and returns the variables that name them, as paths below `root`."""
    if authority is None:
        return {}
    file = folder.root / _INSIDE
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(_hosts() + b"\n" + authority.read_bytes())
    return dict.fromkeys(_VARIABLES, f"{root}/{_INSIDE}")


def _hosts() -> bytes:
    for name in (ssl.get_default_verify_paths().cafile, *_BUNDLES):
        if name and Path(name).is_file():
            return Path(name).read_bytes()
    return b""


_BOOT_S = 30.0  # for a machine to report its first process; a hundredth of that is usual
# The guest is loaded without the surrounding packages, which only the control plane needs.
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
class RunningPower:
    """`holder` ends with its machine; without isolation it is the same process as `init`."""

    holder: HostProcess
    init: HostProcess
    metadata: socket.socket
    channel: socket.socket | None = None
    child: subprocess.Popen[bytes] | None = None
    network: int = -1  # a descriptor of its network, where it has its own

    @property
    def alive(self) -> bool:
        return self.child.poll() is None if self.child else self.holder.alive

    def go(self, folder: MachineFolder) -> None:
        """The metadata service is ready: cloud-init may start. Returns when the machine's file system is ready, too."""
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
    """What separates a machine from the host. Every method may be called from any thread."""

    def power_on(self, folder: MachineFolder, spec: MachineSpec, plan: Mapping[str, Any]) -> RunningPower: ...

    def adopt(self, folder: MachineFolder, spec: MachineSpec) -> RunningPower | None:
        """The machine that a killed twin left running, or None where it is off."""

    def listen(self, power: RunningPower, port: int) -> socket.socket | None:
        """A socket on the machine's loopback. None where that is the host's."""

    def way_in(self, power: RunningPower, folder: MachineFolder) -> tuple[list[str], dict[str, str]] | None:
        """A command prefix that enters the machine, and its variables. None where it is not isolated."""

    def connected(self, power: RunningPower, address: str, port: int) -> socket.socket | None:
        """A socket to a port of the machine's own address. None where that is the host's."""

    def command(self, power: RunningPower, folder: MachineFolder, script: Path) -> tuple[list[str], dict[str, str]]:
        """Command and variables that run a file of its disk inside the machine."""

    def rewritten(self, folder: MachineFolder, script: str) -> str:
        """A script from outside, with the paths as they are inside the machine."""

    def power_off(self, power: RunningPower, folder: MachineFolder) -> None: ...

    def let_go(self, power: RunningPower, folder: MachineFolder) -> None:
        """Releases everything that this process holds of the machine."""


def boot(folder: MachineFolder, order: Mapping[str, Any], descriptors: Sequence[int] = ()) -> RunningPower:
    """Starts the machine up to where it waits for `go`. The caller fills in `metadata`."""
    lock = _claim(folder)
    try:
        write(folder.order, {**order, "lock_fd": lock})
        child, channel = _start(folder, order, [*descriptors, lock])
    finally:
        os.close(lock)
    init = HostProcess.now(int(_said(channel, folder) or child.pid))
    power = RunningPower(HostProcess.now(child.pid), init, channel, channel, child)
    write(folder.power, {"holder": list(_pair(power.holder)), "init": list(_pair(init))})
    return power


def _claim(folder: MachineFolder) -> int:
    """Waits until a start that a killed twin left half done has exited: two machines cannot share one disk."""
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


def recorded(folder: MachineFolder) -> tuple[HostProcess, HostProcess] | None:
    """Holder and init of the last power-on, where the holder is alive."""
    try:
        data = json.loads(folder.power.read_bytes())
    except (OSError, ValueError):
        return None
    holder, init = HostProcess(*data["holder"]), HostProcess(*data["init"])
    return (holder, init) if holder.alive else None


def python() -> str:
    """The interpreter itself, not its virtual environment."""
    return str(Path(getattr(sys, "_base_executable", sys.executable)).resolve())


def hostname(spec: MachineSpec) -> str:
    name = str((spec.facts.get("osProfile") or {}).get("computerName") or spec.name.rpartition("/")[2])
    return re.sub(r"[^A-Za-z0-9-]+", "-", name).strip("-")[:63] or "machine"


def last_words(console: Path) -> str:
    lines = console.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "no output"


def _said(channel: socket.socket, folder: MachineFolder) -> bytes:
    """A line from the machine, byte by byte, because the next one has another reader. Empty when it has died."""
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


def _pair(process: HostProcess) -> tuple[int, str]:
    return process.pid, process.born


@dataclass(frozen=True, slots=True)
class HostProcess:
    pid: int
    born: str

    @classmethod
    def now(cls, pid: int) -> HostProcess:
        return cls(pid, birth(pid))

    @property
    def alive(self) -> bool:
        return bool(self.born) and birth(self.pid) == self.born

    def wait(self, within_s: float = 10.0) -> bool:
        until = time.monotonic() + within_s
        while self.alive:
            if time.monotonic() > until:
                return False
            time.sleep(0.002)
        return True


def birth(pid: int) -> str:
    """Empty for one that does not exist, or is a zombie."""
    if Path("/proc/self/stat").exists():
        try:
            fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(") ")[2].split()
        except OSError:
            return ""
        return "" if fields[0] in "ZX" else fields[19]
    words = ["ps", "-o", "stat=,lstart=", "-p", str(pid)]
    state, _, born = subprocess.run(words, capture_output=True, text=True).stdout.strip().partition(" ")
    return "" if state.startswith("Z") else born.strip()
