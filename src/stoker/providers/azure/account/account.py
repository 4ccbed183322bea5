"""The Azure account of a workspace, as this provider reads it from its file, and what a hand-over file may set in
it."""

from __future__ import annotations

import ipaddress
import json
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from stoker.errors import NotSetUp
from stoker.model.workspace.handover import AccountForm, AddressField, FlagField, NumberField, TextField

PUBLIC_ARM = "https://management.azure.com"
PUBLIC_LOGIN = "https://login.microsoftonline.com"
NO_ACCOUNT = "Azure is not set up on this computer"
PUBLIC_PRICES = "https://prices.azure.com/api/retail/prices"


@dataclass(frozen=True, slots=True)
class Account:
    """Written by an administrator, read by everybody. It contains no secret: `secret_file` names a 0600 file that
    does."""

    subscription: str
    workspace: str = "default"
    regions: tuple[str, ...] = ("eastus",)
    image: str = ""  # publisher:offer:sku:version, or a resource id; empty: chosen by size and GPUs
    disk_gb: int = 128
    role: str = ""  # id of the role that each node has over itself; empty: created when needed
    practitioner: str = ""  # id of a role: nodes go to the group where this login has it; empty: one group per node
    lease_s: float = 432_000.0  # the longest that a VM runs without its server; its store token lasts six days
    idle_s: float = 600.0  # the same for a VM without a run
    ready_s: float = 60.0  # usual time from requesting a VM to its agent's first report
    driver_s: float = 240.0  # how long to wait for a GPU driver that is missing and that nothing installs
    release_s: float = 180.0  # the longest from requesting a release until nothing is billed
    subnet: str = ""  # resource id; empty: each node has its own network
    public_address: bool = True  # of spot VMs; False requires a `subnet` with another way out, such as a NAT gateway
    ssh_key: str = ""  # a public key; empty: no ssh
    open_ssh: bool = False  # a public address, and port 22 open on it for `ssh_from`
    ssh_from: tuple[str, ...] = ()  # addresses or ranges, such as 203.0.113.7 or 203.0.113.0/24
    eviction: str = "Delete"  # or Deallocate: the disk stays and is billed
    tenant: str = ""
    client: str = ""
    secret_file: str = ""  # empty: the login of this computer
    arm: str = PUBLIC_ARM
    login: str = PUBLIC_LOGIN
    prices: str = PUBLIC_PRICES
    ca_file: str = ""  # of an Azure that is not public, such as the twin
    sizes: tuple[str, ...] = field(default=())  # only these; empty: any
    switch: str = ""  # a file: while it exists, requests are recorded to the file that it names
    replay: str = ""  # a recording: responses come from it, and no request is sent to Azure

    def lasts_s(self, lease_s: float | None) -> float:
        """How long a VM that was requested with this lease may run without its server."""
        return min(lease_s or self.idle_s, self.lease_s)

    def restored(self, *, spot: bool) -> bool:
        """Whether Azure restores such a VM after an eviction: it is then a scale set of one."""
        return spot and self.eviction == "Delete"

    def addressed(self, *, of_set: bool) -> bool:
        """Whether such a VM has a public address, which is billed. Scale set instances without one have no outbound
        access, unless their subnet provides it."""
        return self.open_ssh or (of_set and self.public_address)


def read_account(path: Path) -> Account:
    """Raises NotSetUp, with what to do, where the file is missing or invalid."""
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
    """Raises NotSetUp where a port would be open to everybody: Azure has no name for "my own address"."""
    if not account.open_ssh:
        return
    hint = 'set "ssh_from" in azure.json to your public address or your network, such as ["203.0.113.7"]'
    if not account.ssh_from:
        raise NotSetUp("`open_ssh` opens port 22, but `ssh_from` does not say to which addresses", hint=hint)
    for text in account.ssh_from:
        try:
            found = ipaddress.ip_network(text)
        except ValueError as error:
            raise NotSetUp(f"`ssh_from` in azure.json: {error}", hint=hint) from None
        if found.prefixlen == 0:
            raise NotSetUp(f"`ssh_from` in azure.json is {text}, which allows everybody", hint=hint)


def check_way_out(account: Account) -> None:
    """Raises NotSetUp where VMs could reach neither their store nor Azure."""
    if not account.public_address and not account.subnet:
        raise NotSetUp(
            "`public_address` is false, but `subnet` does not name a network with outbound access",
            hint='set "subnet" in azure.json to a subnet with a NAT gateway, or remove "public_address"',
        )


def _alike(value: object, default: object) -> bool:
    """The value has the type of the default."""
    if isinstance(default, tuple):
        return isinstance(value, str) or (isinstance(value, list) and all(isinstance(one, str) for one in value))
    if isinstance(default, bool | int | float):
        return isinstance(value, bool) == isinstance(default, bool) and isinstance(value, int | type(default))
    return isinstance(value, str)


def _texts(found: str | list[str]) -> tuple[str, ...]:
    return (found,) if isinstance(found, str) else tuple(found)


_ID = TextField(r"[A-Za-z0-9-]{0,64}", "an id")
_RESOURCE = TextField(r"(?!.*\.\.)(?:/[A-Za-z0-9 ._()-]+)*", "a resource's id")
_WORD = r"[A-Za-z0-9_.-]{1,60}"

# Exact hosts, not suffixes: anyone's VMs have names below `cloudapp.azure.com`.
_ARM = ("management.azure.com", "management.usgovcloudapi.net", "management.chinacloudapi.cn")
_LOGIN = (
    "login.microsoftonline.com",
    "login.microsoftonline.us",
    "login.partner.microsoftonline.cn",
    "login.chinacloudapi.cn",
)
_CLOUDS = r"blob\.core\.(?:windows\.net|usgovcloudapi\.net|chinacloudapi\.cn)"
_BLOB = rf"[a-z0-9]{{3,24}}\.(?:{_CLOUDS}|z[0-9]{{1,2}}\.blob\.storage\.azure\.net)"

# Not here: settings that name a file (`secret_file`, `ca_file`, `switch`, `replay`), grant access (`ssh_key`,
# `open_ssh`, `ssh_from`) or select a login (`client`). Only the user may set those.
FORM = AccountForm(
    fields={
        "subscription": TextField(r"[A-Za-z0-9-]{1,64}", "a subscription's id"),
        "tenant": _ID,
        "workspace": TextField(r"[a-z0-9][a-z0-9-]{0,29}", "a workspace's name"),
        "regions": TextField(r"[a-z0-9]{1,40}", "a list of regions", many=80),
        "sizes": TextField(_WORD, "a list of VM sizes", many=500),
        "image": TextField(rf"(?:{_WORD}:{_WORD}:{_WORD}:{_WORD})?|{_RESOURCE.pattern}", "publisher:offer:sku:version"),
        "disk_gb": NumberField(30, 4095, whole=True),
        "role": _ID,
        "practitioner": _ID,
        "subnet": _RESOURCE,
        "public_address": FlagField(),
        "eviction": TextField(r"Delete|Deallocate", "`Delete` or `Deallocate`"),
        "lease_s": NumberField(5, 432_000),
        "idle_s": NumberField(5, 86_400),
        "ready_s": NumberField(0, 3_600),
        "driver_s": NumberField(0, 3_600),
        "release_s": NumberField(0, 3_600),
        "arm": AddressField(own=_ARM),
        "login": AddressField(own=_LOGIN),
        "prices": AddressField(own=("prices.azure.com",)),
    },
    required=("subscription",),
    stores=_BLOB,
    login=r"az login(?: --tenant [A-Za-z0-9.-]{1,64})?"
    r"|export AZURE_TENANT_ID=[A-Za-z0-9.-]{0,64} AZURE_CLIENT_ID=… AZURE_CLIENT_SECRET=…",
    admission=r"stoker admin setup azure --workspace [a-z0-9-]{1,30} --practitioner YOUR-OBJECT-ID",
)
