"""The machines of a folder, of the kind that this computer supports; and those without isolation."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from stoker.errors import TwinFailed
from stoker.twin.machines import Acknowledged, Machines, MachineSpec, TokenFor
from stoker.twin.machines.guest.processes import end
from stoker.twin.machines.guest.walls import listening
from stoker.twin.machines.outward import PORT, go_out, variables
from stoker.twin.machines.power import (
    Enclosure,
    MachineFolder,
    RunningPower,
    boot,
    hostname,
    python,
    read,
    recorded,
    trust,
    write,
)
from stoker.twin.machines.yard import Yard

METADATA_VARIABLE = "AZURE_POD_IDENTITY_AUTHORITY_HOST"
MARK = "STOKER_TWIN_MACHINE"


class Plain:
    def __init__(self, authority: Path | None = None) -> None:
        self._authority = authority

    def power_on(self, folder: MachineFolder, spec: MachineSpec, plan: Mapping[str, Any]) -> RunningPower:
        folder.root.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(folder.root / "run", ignore_errors=True)  # like memory, it is lost at power-off
        metadata = _metadata(folder)
        write(folder.plan, rehomed_plan(plan, str(folder.root), _url(metadata)))
        write(folder.path / "own.json", {"folders": own_folders(plan), "metadata": _url(metadata)})
        try:
            power = boot(folder, self._order(folder, spec, metadata))
        except BaseException:
            metadata.close()
            raise
        power.metadata = metadata
        return power

    def adopt(self, folder: MachineFolder, spec: MachineSpec) -> RunningPower | None:  # noqa: ARG002  # as in the contract
        """At the port that its processes know."""
        found = recorded(folder)
        if found is None:
            end(_mark(folder))  # an init that was killed leaves its processes
            return None
        port = int(read(folder.order)["metadata_port"])
        return RunningPower(*found, listening("127.0.0.1", port))

    def listen(self, power: RunningPower, port: int) -> socket.socket | None:  # noqa: ARG002  # the host's loopback is theirs
        return None

    def way_in(self, power: RunningPower, folder: MachineFolder) -> None:
        """An sshd here would be one of the host."""

    def connected(self, power: RunningPower, address: str, port: int) -> None:
        """The host's ports belong to the host."""

    def command(self, power: RunningPower, folder: MachineFolder, script: Path) -> tuple[list[str], dict[str, str]]:  # noqa: ARG002
        return [str(script)], dict(read(folder.order)["environment"])

    def rewritten(self, folder: MachineFolder, script: str) -> str:
        own = read(folder.path / "own.json")
        return rehomed(script, tuple(own["folders"]), str(folder.root), own["metadata"])

    def power_off(self, power: RunningPower, folder: MachineFolder) -> None:
        end(_mark(folder), power.init.pid if power.init.alive else None)
        power.wait()

    def let_go(self, power: RunningPower, folder: MachineFolder) -> None:
        """Nothing to release."""

    def _order(self, folder: MachineFolder, spec: MachineSpec, metadata: socket.socket) -> dict[str, Any]:
        own = [str(folder.root / "usr/local/sbin"), str(folder.root / "usr/bin")]
        environment = {
            "PATH": os.pathsep.join([*own, *os.get_exec_path()]),
            "HOME": str(folder.root / "root"),
            "LANG": "C.UTF-8",
            METADATA_VARIABLE: _url(metadata),
            MARK: _id(folder),
            **trust(folder, self._authority, str(folder.root)),
        }
        return {
            "walled": False,
            "root": str(folder.root),
            "hostname": hostname(spec),
            "metadata_port": metadata.getsockname()[1],
            "environment": environment,
            "mark": _mark(folder),
            "python": python(),
        }


def _metadata(folder: MachineFolder) -> socket.socket:
    """At its earlier port, which files on the disk may name; at another where that is in use."""
    with suppress(OSError):
        return listening("127.0.0.1", int(read(folder.order).get("metadata_port", 0)))
    return listening("127.0.0.1", 0)


def _url(metadata: socket.socket) -> str:
    return f"http://127.0.0.1:{metadata.getsockname()[1]}"


def _mark(folder: MachineFolder) -> str:
    return f"{MARK}={_id(folder)}"


def _id(folder: MachineFolder) -> str:
    return hashlib.sha256(str(folder.path.resolve()).encode()).hexdigest()[:16]


_DRIVER = "/usr/local/sbin/nvidia-smi"  # a driver is installed in a machine, never on the host
OWN = ("/etc/systemd/system", "/var/lib", "/var/log", "/run", "/root", "/srv", "/mnt", "/home", _DRIVER)
_METADATA = "http://169.254.169.254"
_SYSTEM = (
    "/",
    "/etc",
    "/opt",
    "/usr",
    "/usr/bin",
    "/usr/sbin",
    "/usr/local",
    "/usr/local/bin",
    "/usr/local/sbin",
    "/tmp",
)


def own_folders(plan: Mapping[str, Any]) -> tuple[str, ...]:
    """Those of every machine, and those where this one's plan writes files."""
    found = set(OWN)
    for file in plan["files"]:
        folder = str(PurePosixPath(file["path"]).parent)
        found.add(file["path"] if folder in _SYSTEM else folder)
    return tuple(sorted(found))


def rehomed(text: str, folders: tuple[str, ...], root: str, metadata: str) -> str:
    """Only whole names: `/var/lib/x` is moved, `/var/library` and `/host/var/lib` are not."""
    names = "|".join(re.escape(folder) for folder in sorted(folders, key=len, reverse=True))
    text = text.replace(_METADATA, metadata)
    return re.sub(rf"(?<![\w./-])(?:{names})(?![\w-])", lambda found: root + found[0], text)


def rehomed_plan(plan: Mapping[str, Any], root: str, metadata: str) -> dict[str, Any]:
    move = partial(rehomed, folders=own_folders(plan), root=root, metadata=metadata)
    return {
        **plan,
        "bootcmd": move(plan["bootcmd"]),
        "scripts": {name: move(script) for name, script in plan["scripts"].items()},
        "files": [{**file, "content": _content(file["content"], move), "owner": ""} for file in plan["files"]],
    }


def _content(encoded: str, move: Callable[[str], str]) -> str:
    """Only text: a program or an archive is unchanged."""
    data = base64.b64decode(encoded)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return encoded
    return encoded if "\0" in text else base64.b64encode(move(text).encode()).decode()


TOOLS = {"ip": "iproute2", "nsenter": "util-linux", "unshare": "util-linux", "mount": "mount"}
_TRIAL = """set -e
mkdir upper work lower root
mount -t overlay -o volatile,lowerdir=lower,upperdir=upper,workdir=work overlay root
ip link add wire0 type veth peer name wire1
ip link add switch0 type bridge
"""


def open_machines(
    folder: Path,
    token_for: TokenFor,
    *,
    acknowledged: Acknowledged = lambda _name, _events: None,
    first_events_s: Callable[[str], float] = lambda _name: 0.0,
    walls: bool | None = None,
    shown: tuple[str, ...] = (),
    authority: Path | None = None,
    outward: bool = False,
) -> Machines:
    """Finds the existing machines of the folder. `walls`: isolation; None: where it is supported. `shown` are folders
    of the host that machines see besides the operating system; `authority` is a certificate file that they trust.
    `outward`: programs that use `https_proxy` reach what the host does.

    Raises `TwinFailed` where another process uses the folder, or isolation is required and not supported.
    """
    folder = folder.resolve()
    refusal = why_no_walls(folder) if walls is not False else "not requested"
    if walls and refusal:
        raise TwinFailed(f"isolated machines are not supported here: {refusal}", hint="stoker twin up --plain")
    enclosure: Enclosure = Plain(authority)
    if not refusal:
        from stoker.twin.machines.walled import Walled  # its system calls exist on Linux alone

        enclosure = Walled(folder, shown, authority, variables() if outward else {})
    return Yard(folder, enclosure, token_for, acknowledged, first_events_s, {PORT: go_out} if outward else {})


def why_no_walls(folder: Path) -> str:
    """Empty where namespaces and overlays in the folder are permitted: tested by creating some, which leave nothing."""
    if sys.platform != "linux":
        return f"{sys.platform} does not support namespaces"
    if os.geteuid() != 0:
        return "root is required"
    for tool, package in TOOLS.items():
        if not shutil.which(tool):
            return f"`{tool}` is missing; try `apt-get install {package}`"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    trial = folder / f".trial-{os.urandom(4).hex()}"
    trial.mkdir()
    words = ["unshare", "--mount", "--net", "--pid", "--uts", "--ipc", "--fork", "sh", "-c", _TRIAL]
    try:
        found = subprocess.run(words, cwd=trial, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    finally:
        shutil.rmtree(trial, ignore_errors=True)
    return "" if found.returncode == 0 else (found.stderr.strip().splitlines() or ["unshare failed"])[-1]
