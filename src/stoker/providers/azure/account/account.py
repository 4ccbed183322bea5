"""Which Azure to use and how: the part of a workspace that this provider reads from its file."""

from __future__ import annotations

import ipaddress
import json
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from stoker.errors import NotSetUp

PUBLIC_ARM = "https://management.azure.com"
PUBLIC_LOGIN = "https://login.microsoftonline.com"
NO_ACCOUNT = "Azure is not set up on this computer"
PUBLIC_PRICES = "https://prices.azure.com/api/retail/prices"


@dataclass(frozen=True, slots=True)
class Account:
    """Written by an administrator, read by everybody. It holds no secret: `secret_file` names a 0600 file that does."""

    subscription: str
    workspace: str = "default"
    regions: tuple[str, ...] = ("eastus",)
    image: str = ""  # publisher:offer:sku:version, or a resource id; empty: one that suits the size and its GPUs
    disk_gb: int = 128
    role: str = ""  # id of the role of nodes, each of which has it for itself alone; empty: it is made when needed
    practitioner: str = ""  # id of a role: nodes go to the group where this login has it; empty: each has its own group
    lease_s: float = 432_000.0  # the longest a machine works on without its server; its store's ticket lasts six days
    idle_s: float = 600.0  # the same for one on which nobody works
    ready_s: float = 60.0  # from asking for a machine to its agent's first word, as it usually goes
    driver_s: float = 240.0  # a GPU driver that is missing, and that nothing installs, is waited for so long
    release_s: float = 180.0  # from asking for its release until nothing of it costs, at the longest
    subnet: str = ""  # resource id; empty: each node has its own network
    public_address: bool = True  # of spot machines; False needs a `subnet` with another way out, as a NAT gateway is
    ssh_key: str = ""  # a public key; empty: nobody logs in by ssh
    open_ssh: bool = False  # a public address, and port 22 open on it for `ssh_from`
    ssh_from: tuple[str, ...] = ()  # addresses or ranges, such as 203.0.113.7 or 203.0.113.0/24
    eviction: str = "Delete"  # or Deallocate: the disk stays, and costs
    tenant: str = ""
    client: str = ""
    secret_file: str = ""  # empty: whoever is logged in on this computer
    arm: str = PUBLIC_ARM
    login: str = PUBLIC_LOGIN
    prices: str = PUBLIC_PRICES
    ca_file: str = ""  # of an Azure that is not public, as the twin's is not
    sizes: tuple[str, ...] = field(default=())  # only these; empty: any
    switch: str = ""  # a file: while it is there, requests are recorded in the file that it names
    replay: str = ""  # a recording: answers come from it, and nothing is asked of Azure

    def lasts_s(self, lease_s: float | None) -> float:
        """How long a machine that was asked for with this lease may stay without its server."""
        return min(lease_s or self.idle_s, self.lease_s)

    def restored(self, *, spot: bool) -> bool:
        """Whether Azure restores such a machine after an eviction: it is a scale set of one then."""
        return spot and self.eviction == "Delete"

    def addressed(self, *, of_set: bool) -> bool:
        """Whether such a machine has a public address, which is paid for. Instances of scale sets reach nothing without
        one, unless their subnet has another way out."""
        return self.open_ssh or (of_set and self.public_address)


def read_account(path: Path) -> Account:
    """Raises NotSetUp, with what to do, where there is none or it cannot be read."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise NotSetUp(
            NO_ACCOUNT,
            hint="with your administrator's file: stoker workspace use team.json; without one, describe your account "
            f"in {path}: see the guide to a first cloud run",
        ) from None
    except (OSError, ValueError) as error:
        raise NotSetUp(f"{path} cannot be read: {error}", hint="see the guide to a first cloud run") from None
    if not isinstance(found, dict) or not found.get("subscription"):
        raise NotSetUp(f"{path} does not describe an Azure account", hint="see the guide to a first cloud run")
    defaults = {
        one.name: one.default_factory() if callable(one.default_factory) else one.default for one in fields(Account)
    }
    for name, value in found.items():
        if name not in defaults or not _alike(value, defaults[name]):
            raise NotSetUp(
                f"{path} does not describe an Azure account: `{name}` is unknown or of another type",
                hint="remove it, or take the team's file again: stoker workspace use FILE",
            )
    account: dict[str, Any] = {
        name: _texts(value) if isinstance(defaults[name], tuple) else value for name, value in found.items()
    }
    return Account(**{"switch": str(path.with_name("azure.record")), **account})


def check_ssh(account: Account) -> None:
    """Raises NotSetUp where a port would be open to everybody: Azure knows no name for "my own address"."""
    if not account.open_ssh:
        return
    hint = 'set "ssh_from" in azure.json to your public address or your network, such as ["203.0.113.7"]'
    if not account.ssh_from:
        raise NotSetUp("`open_ssh` opens port 22, and `ssh_from` does not say for whom", hint=hint)
    for text in account.ssh_from:
        try:
            found = ipaddress.ip_network(text)
        except ValueError as error:
            raise NotSetUp(f"`ssh_from` in azure.json: {error}", hint=hint) from None
        if found.prefixlen == 0:
            raise NotSetUp(f"`ssh_from` in azure.json is {text}, which is everybody", hint=hint)


def check_way_out(account: Account) -> None:
    """Raises NotSetUp where machines could reach neither their store nor Azure."""
    if not account.public_address and not account.subnet:
        raise NotSetUp(
            "`public_address` is false, and `subnet` names no network that has another way out",
            hint='set "subnet" in azure.json to a subnet with a NAT gateway, or remove "public_address"',
        )


def _alike(value: object, default: object) -> bool:
    """The value is of the type of what stands in its place."""
    if isinstance(default, tuple):
        return isinstance(value, str) or (isinstance(value, list) and all(isinstance(one, str) for one in value))
    if isinstance(default, bool | int | float):
        return isinstance(value, bool) == isinstance(default, bool) and isinstance(value, int | type(default))
    return isinstance(value, str)


def _texts(found: str | list[str]) -> tuple[str, ...]:
    return (found,) if isinstance(found, str) else tuple(found)
