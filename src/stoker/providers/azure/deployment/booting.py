"""What a machine is made to do at its start: the agent is put where it finds it, and its orders are written out."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from urllib.parse import quote

from stoker.agent.pack import pack
from stoker.errors import ProviderFailed
from stoker.model.node.node import NodeRequest
from stoker.model.workspace import layout
from stoker.model.workspace.home import Home
from stoker.providers.azure.cloud import FORCED
from stoker.providers.azure.deployment.cloudinit import Boot, custom_data
from stoker.providers.azure.deployment.template import COMPUTE, NodeSite
from stoker.providers.azure.node.release import MACHINE
from stoker.stores.access import Access
from stoker.stores.opening import open_access
from stoker.stores.sealed import seal

GROUPS_API = "2024-03-01"
NODE = "stoker.providers.azure.node"  # is shipped with the agent
METADATA = "http://169.254.169.254/metadata"
EVENTS = f"{METADATA}/scheduledevents?api-version=2020-07-01"
TOKENS = f"{METADATA}/identity/oauth2/token?api-version=2018-02-01"
UBUNTU = {"--reboot-mark": "/run/reboot-required", "--package-lock": "/var/lib/dpkg/lock-frontend"}
READY_S = 1800.0  # for drivers to be installed and to answer; a machine that takes longer is given back


def boot_text(request: NodeRequest, site: NodeSite, home: Home) -> str:
    """What a machine is told at its start stays on its disk, so it is only where to look and what to open it with. The
    agent, and sealed beside it everything that is secret, lie where the machine may read and nothing more."""
    account, agent = site.account, pack(home.agents, (NODE,)).read_bytes()
    access, node = Access.from_text(request.access), layout.node_with(request.orders)
    key, words = layout.agent(*node), layout.again(*node)
    store = open_access(replace(access, routes=tuple(route for route in access.routes if route.writes)))
    store.put(key, agent)
    given = {"orders": request.orders, "variables": request.variables, "spend": request.spend}
    store.put(words, seal(request.seal, json.dumps(given), words))
    ticket = boot_ticket(access, *node)
    return custom_data(
        Boot(
            agent_url=signed_url(ticket, key),
            agent_sha256=hashlib.sha256(agent).hexdigest(),
            store=request.store,
            orders=request.orders,
            lease_s=account.lasts_s(request.lease_s),
            idle_s=min(account.idle_s, account.lease_s),
            release=_release(site),
            arguments={
                "--cloud": NODE,
                "--events": EVENTS,
                "--ready-within": f"{READY_S:g}",
                "--driver-within": f"{account.driver_s:g}",
                **UBUNTU,
            },
            variables={"STOKER_ACCESS": ticket.to_text(), "STOKER_SEAL": request.seal},
            spend=request.spend,
        )
    )


def boot_ticket(access: Access, run_id: str, number: int, node: int = 0) -> Access:
    """As little as a machine begins with: where the store can give them, tokens that each read one object, and outlive
    the access by days."""
    needed = [one(run_id, number, node) for one in (layout.access, layout.again, layout.agent)]
    return replace(access, routes=tuple(dict.fromkeys(route for key in needed if (route := access.route(key)))))


def _release(site: NodeSite) -> dict[str, str]:
    """How the machine removes itself, see `node/release.py`."""
    arm, alone, of_set = site.account.arm.rstrip("/"), site.role_scope == site.group, site.place.set
    force = f"forceDeletionTypes={quote(FORCED)}" if alone else "forceDeletion=true"
    removed, version = (site.group, GROUPS_API) if alone else (site.node, COMPUTE)
    token_url = f"{TOKENS}&resource={quote(site.account.arm, safe='')}"
    instead_url = f"{arm}{MACHINE if of_set else site.vm}/deallocate?api-version={COMPUTE}"
    return {
        "url": f"{arm}{removed}?api-version={version}&{force}",
        "token_url": f"{token_url}&msi_res_id={quote(site.identity, safe='')}" if of_set else token_url,
        # A role at a set says nothing of its instances.
        "instead_url": instead_url if alone or not of_set else "",
    }


def signed_url(access: Access, key: str) -> str:
    """Where the key can be read with nothing but this URL."""
    route = access.route(key)
    if route is None or not route.token or "?" in route.url or not route.url.startswith("http"):
        hint = "keep the runs in Azure Blob: stoker store add, then stoker store use"
        raise ProviderFailed("a machine in Azure cannot reach the store of this workspace", hint=hint)
    inside = f"/{quote(key.removeprefix(route.prefix))}" if not route.one else ""
    return f"{route.url.rstrip('/')}{inside}?{route.token}"
