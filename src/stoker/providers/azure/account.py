"""Which Azure to use and how: the part of a workspace that this provider reads from its file."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from pathlib import Path

from stoker.errors import NotSetUp

PUBLIC_ARM = "https://management.azure.com"
PUBLIC_LOGIN = "https://login.microsoftonline.com"
PUBLIC_PRICES = "https://prices.azure.com/api/retail/prices"
GPU_IMAGE = "microsoft-dsvm:ubuntu-hpc:2204:latest"  # has the drivers and a container runtime
PLAIN_IMAGE = "Canonical:0001-com-ubuntu-server-jammy:22_04-lts-gen2:latest"  # a tenth of the other: it boots sooner
CONTRIBUTOR = "b24988ac-6180-42a0-ab88-20f7382dd24c"  # the smallest of Azure's own roles that may delete a group


@dataclass(frozen=True, slots=True)
class Account:
    """Written by an administrator, read by everybody. It holds no secret: `secret_file` names a 0600 file that does."""

    subscription: str
    workspace: str = "default"
    regions: tuple[str, ...] = ("eastus",)
    image: str = ""  # publisher:offer:sku:version, or a resource id; empty: one with drivers where there are GPUs
    disk_gb: int = 128
    identity: str = ""  # resource id of the identity nodes get: it may delete their groups; empty: each has its own
    principal: str = ""  # of that identity, which then gets its role with each node; empty: it has a role already
    role: str = CONTRIBUTOR  # of a node's identity, in the group of its node and nowhere else
    lease_s: float = 600.0  # a machine that hears nothing of its server for so long removes itself
    ready_s: float = 60.0  # from asking for a machine to its agent's first word, as it usually goes
    release_s: float = 180.0  # from asking for its release until nothing of it costs, at the longest
    subnet: str = ""  # resource id; empty: each node has its own network
    ssh_key: str = ""  # a public key; empty: nobody logs in by ssh
    open_ssh: bool = False  # a public address, and port 22 open on it
    eviction: str = "Delete"  # or Deallocate: the disk stays, and costs
    tenant: str = ""
    client: str = ""
    secret_file: str = ""  # empty: whoever is logged in on this computer
    arm: str = PUBLIC_ARM
    login: str = PUBLIC_LOGIN
    prices: str = PUBLIC_PRICES
    ca_file: str = ""  # of an Azure that is not public, as the twin's is not
    sizes: tuple[str, ...] = field(default=())  # only these; empty: any


def read_account(path: Path) -> Account:
    """Raises NotSetUp, with what to do, where there is none or it cannot be read."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise NotSetUp(
            "Azure is not set up on this computer",
            hint=f"describe your account in {path}: see the guide to a first cloud run",
        ) from None
    except (OSError, ValueError) as error:
        raise NotSetUp(f"{path} cannot be read: {error}", hint="see the guide to a first cloud run") from None
    known = {one.name for one in fields(Account)}
    if not isinstance(found, dict) or not found.get("subscription") or not found.keys() <= known:
        raise NotSetUp(f"{path} does not describe an Azure account", hint="see the guide to a first cloud run")
    lists = {name: tuple(found[name]) for name in ("regions", "sizes") if name in found}
    return Account(**{**found, **lists})
