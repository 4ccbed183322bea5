"""The twin's machines: real, isolated processes, started from cloud-init data, killed to power off.

`opening.open_machines(folder, token_for, ...)` returns the kind that this computer supports.
Nothing here knows of subscriptions, groups or prices: the control plane decides what exists, this runs it.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

# (machine, resource, and an identity where one is named) -> the response of a token endpoint; raises LookupError
TokenFor = Callable[..., dict[str, Any]]
Acknowledged = Callable[[str, Sequence[str]], None]  # (machine, event ids): the machine agrees to start at once


@dataclass(frozen=True, slots=True)
class MachineSpec:
    """`name` is unique in the twin and may contain any character. `facts` is the metadata service's `compute`.

    Machines of one `network` reach each other by their addresses; two networks may use the same address.
    """

    name: str
    custom_data: bytes
    address: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    network: str = "default"
    outbound: bool = True  # it has outbound access


class Machines(Protocol):
    """Machines by name. Each method returns when it is done, and may be called from any thread.

    An unknown name is a machine that is off: `alive` is False, there is nothing to power off or to destroy, and the
    others raise `KeyError`.
    """

    def names(self) -> list[str]:
        """Every existing machine, on or off; also those that a killed twin has left."""

    def create(self, spec: MachineSpec) -> None:
        """Creates the disk and powers on; cloud-init continues by itself. An existing machine is powered on."""

    def start(self, name: str) -> None:
        """Powers on a stopped machine: the same disk boots again. A running one is unchanged."""

    def power_off(self, name: str) -> None:
        """Kills everything in it, at once. The disk stays."""

    def destroy(self, name: str) -> None:
        """Deletes machine and disk. Calling it twice is fine."""

    def alive(self, name: str) -> bool:
        """False also for one that has shut down by itself."""

    def run_command(self, name: str, script: str, timeout_s: float) -> tuple[int, str, str]:
        """Runs a shell script in the machine as root: exit code, stdout, stderr. 124 when it took too long."""

    def set_events(self, name: str, document: Mapping[str, Any]) -> None:
        """Sets the response of Scheduled Events."""

    def expose(self, port: int) -> None:
        """Lets every machine reach 127.0.0.1:port of the host at the same address, now and after each boot."""

    def connect(self, name: str, port: int, connection: socket.socket) -> None:
        """Forwards an inbound connection to a port of the machine, until one side ends. Port 22 is served by its sshd.
        Where machines have no addresses of their own, or this one is off, it ends at once."""

    def close(self) -> None:
        """Releases what this process holds, and leaves the machines running for the next one that opens the folder."""
