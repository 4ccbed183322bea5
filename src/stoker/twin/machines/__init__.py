"""The twin's machines: real processes behind their own walls, started from cloud-init data, killed to power off.

`opening.open_machines(folder, token_for, ...)` gives the kind that this computer allows.
Nothing here knows of subscriptions, groups or prices: the control plane says what exists, this makes it run.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

# (machine, resource, and an identity where one is named) -> an OAuth token reply; raises LookupError
TokenFor = Callable[..., dict[str, Any]]
Acknowledged = Callable[[str, Sequence[str]], None]  # (machine, event ids): the machine agrees to begin at once


@dataclass(frozen=True, slots=True)
class MachineSpec:
    """`name` is unique in the twin and may hold any character. `facts` is what the metadata service's `compute` says.

    Machines of one `network` reach each other by their addresses; two networks may hold the same address.
    """

    name: str
    custom_data: bytes
    address: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    network: str = "default"
    outbound: bool = True  # reaches what is outside its network


class Machines(Protocol):
    """Machines by name. Each method returns when it is done, and may be called from any thread.

    A name that is unknown is a machine that is off: `alive` is False, there is nothing to power off or to destroy, and
    the others raise `KeyError`.
    """

    def names(self) -> list[str]:
        """Every machine there is, on or off; also those that a killed twin has left."""

    def create(self, spec: MachineSpec) -> None:
        """Makes the disk and powers on; cloud-init goes on by itself. For a machine that exists: powers it on."""

    def start(self, name: str) -> None:
        """Powers on a stopped machine: the same disk boots again. Nothing happens to one that is on."""

    def power_off(self, name: str) -> None:
        """Kills everything in it, at once. The disk stays."""

    def destroy(self, name: str) -> None:
        """Machine and disk are gone. Twice is fine."""

    def alive(self, name: str) -> bool:
        """False also for one that has shut itself down."""

    def run_command(self, name: str, script: str, timeout_s: float) -> tuple[int, str, str]:
        """Runs a shell script in the machine as root: exit code, stdout, stderr. 124 when it took too long."""

    def set_events(self, name: str, document: Mapping[str, Any]) -> None:
        """What Scheduled Events answers from now on."""

    def expose(self, port: int) -> None:
        """Lets every machine reach 127.0.0.1:port of the host at the same address, now and after each boot."""

    def connect(self, name: str, port: int, connection: socket.socket) -> None:
        """Passes on what came from outside to a port of the machine, until one side ends. At 22 its sshd answers. Where
        machines have no addresses of their own, and where one is off, it ends at once."""

    def close(self) -> None:
        """Ends what this process holds, and leaves the machines running for the next that opens the folder."""
