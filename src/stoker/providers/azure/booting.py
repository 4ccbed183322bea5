"""What a machine is made to do at its start: the agent is put where it finds it, and its orders are written out."""

from __future__ import annotations

import hashlib
from urllib.parse import quote

from stoker.agent.pack import pack
from stoker.errors import ProviderFailed
from stoker.model.home import Home
from stoker.model.node import NodeRequest
from stoker.providers.azure.account import Account
from stoker.providers.azure.cloudinit import Boot, custom_data
from stoker.providers.azure.template import COMPUTE, VM
from stoker.stores.access import Access
from stoker.stores.nodeaccess import open_access

GROUPS_API = "2024-03-01"
METADATA = "http://169.254.169.254/metadata"
EVENTS = f"{METADATA}/scheduledevents?api-version=2020-07-01"
TOKENS = f"{METADATA}/identity/oauth2/token?api-version=2018-02-01"
UBUNTU = {"--reboot-mark": "/run/reboot-required", "--package-lock": "/var/lib/dpkg/lock-frontend"}
READY_S = 1800.0  # for drivers to be installed and to answer; a machine that takes longer is given back


def boot_text(request: NodeRequest, account: Account, group_id: str, home: Home) -> str:
    """The agent lies beside the orders, where the node's own token reaches it."""
    agent = pack(home.agents).read_bytes()
    access = Access.from_text(request.access)
    key = f"{request.orders.rsplit('/', 1)[0]}/agent.pyz"
    open_access(access).put(key, agent)
    return custom_data(
        Boot(
            agent_url=signed_url(access, key),
            agent_sha256=hashlib.sha256(agent).hexdigest(),
            store=request.store,
            orders=request.orders,
            lease_s=account.lease_s,
            release=_release(account, group_id),
            arguments={"--events": EVENTS, "--ready-within": f"{READY_S:g}", **UBUNTU},
            variables=request.variables,
            spend=request.spend,
        )
    )


def _release(account: Account, group_id: str) -> dict[str, str]:
    """How the machine removes itself, see `agent/release.py`."""
    group = f"{account.arm.rstrip('/')}{group_id}"
    return {
        "url": f"{group}?api-version={GROUPS_API}",
        "token_url": f"{TOKENS}&resource={quote(account.arm, safe='')}",
        "instead_url": f"{group}/providers/Microsoft.Compute/virtualMachines/{VM}/deallocate?api-version={COMPUTE}",
    }


def signed_url(access: Access, key: str) -> str:
    """Where the key can be read with nothing but this URL."""
    route = access.route(key)
    if route is None or not route.token or "?" in route.url or not route.url.startswith("http"):
        hint = "keep the runs in Azure Blob: stoker store add, then stoker store use"
        raise ProviderFailed("a machine in Azure cannot reach the store of this workspace", hint=hint)
    return f"{route.url.rstrip('/')}/{quote(key.removeprefix(route.prefix))}?{route.token}"
