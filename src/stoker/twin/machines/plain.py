"""Machines without walls, for where namespaces are not allowed: processes with a mark, and a folder as their root.

They behave like the others but for the address: the host's network is theirs, and the metadata service is on a port of
loopback. `AZURE_POD_IDENTITY_AUTHORITY_HOST` names it, as Azure's own libraries know it, and where custom data or a
command names the real address, it is put in its place.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from stoker.twin.machines import MachineSpec
from stoker.twin.machines.folder import MachineFolder, read, write
from stoker.twin.machines.guest.marked import end
from stoker.twin.machines.netns import listening
from stoker.twin.machines.power import Power, boot, hostname, python, recorded
from stoker.twin.machines.rehoming import own_folders, rehomed, rehomed_plan
from stoker.twin.machines.trust import trust

METADATA_VARIABLE = "AZURE_POD_IDENTITY_AUTHORITY_HOST"
MARK = "STOKER_TWIN_MACHINE"


class Plain:
    def __init__(self, authority: Path | None = None) -> None:
        self._authority = authority

    def power_on(self, folder: MachineFolder, spec: MachineSpec, plan: Mapping[str, Any]) -> Power:
        folder.root.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(folder.root / "run", ignore_errors=True)  # as memory does, it forgets when the power goes
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

    def adopt(self, folder: MachineFolder, spec: MachineSpec) -> Power | None:  # noqa: ARG002  # as in the contract
        """At the port that its processes were told of."""
        found = recorded(folder)
        if found is None:
            end(_mark(folder))  # an init that was killed leaves its processes
            return None
        port = int(read(folder.order)["metadata_port"])
        return Power(*found, listening("127.0.0.1", port))

    def listen(self, power: Power, port: int) -> socket.socket | None:  # noqa: ARG002  # the host's loopback is theirs
        return None

    def way_in(self, power: Power, folder: MachineFolder) -> None:
        """An sshd here would be one of the host."""

    def connected(self, power: Power, address: str, port: int) -> None:
        """The host's ports are the host's."""

    def command(self, power: Power, folder: MachineFolder, script: Path) -> tuple[list[str], dict[str, str]]:  # noqa: ARG002
        return [str(script)], dict(read(folder.order)["environment"])

    def rewritten(self, folder: MachineFolder, script: str) -> str:
        own = read(folder.path / "own.json")
        return rehomed(script, tuple(own["folders"]), str(folder.root), own["metadata"])

    def power_off(self, power: Power, folder: MachineFolder) -> None:
        end(_mark(folder), power.init.pid if power.init.alive else None)
        power.wait()

    def let_go(self, power: Power, folder: MachineFolder) -> None:
        """There is nothing to let go of."""

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
    """At the port it had before, which files on the disk may name; at another where that is taken."""
    with suppress(OSError):
        return listening("127.0.0.1", int(read(folder.order).get("metadata_port", 0)))
    return listening("127.0.0.1", 0)


def _url(metadata: socket.socket) -> str:
    return f"http://127.0.0.1:{metadata.getsockname()[1]}"


def _mark(folder: MachineFolder) -> str:
    return f"{MARK}={_id(folder)}"


def _id(folder: MachineFolder) -> str:
    return hashlib.sha256(str(folder.path.resolve()).encode()).hexdigest()[:16]
