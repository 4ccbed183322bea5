"""The boot instructions of a VM: the cloud-init document that fetches the agent and runs it at every boot, and the
agent's encrypted settings."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field, replace
from typing import Any
from urllib.parse import quote

from stoker.agent.pack import pack
from stoker.errors import ProviderFailed
from stoker.model.cause import Cause
from stoker.model.node import NodeRequest
from stoker.model.workspace import layout
from stoker.model.workspace.home import Home
from stoker.providers.azure.cloud import FORCED
from stoker.providers.azure.node import MACHINE
from stoker.providers.azure.template import COMPUTE, NodeSite
from stoker.stores.access import Access
from stoker.stores.opening import open_access
from stoker.stores.sealing import seal

GROUPS_API = "2024-03-01"
NODE = "stoker.providers.azure.node"  # shipped with the agent
METADATA = "http://169.254.169.254/metadata"
EVENTS = f"{METADATA}/scheduledevents?api-version=2020-07-01"
TOKENS = f"{METADATA}/identity/oauth2/token?api-version=2018-02-01"
ENGINE_UNIT = "stoker-engine.service"  # the agent starts it where a job needs a container
UBUNTU = {
    "--reboot-mark": "/run/reboot-required",
    "--package-lock": "/var/lib/dpkg/lock-frontend",
    "--engine-unit": ENGINE_UNIT,
}
READY_S = 1800.0  # to install drivers until they answer; a VM that takes longer is released


def boot_text(request: NodeRequest, site: NodeSite, home: Home) -> str:
    """Custom data stays on the VM's disk, so it contains only where to look and the key to decrypt it. The agent and
    the encrypted secrets are in the store, where the VM has read-only access."""
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
    """The least that a VM needs to boot: where the store supports it, tokens that read one object each and stay valid
    for days longer than the access."""
    needed = [one(run_id, number, node) for one in (layout.access, layout.again, layout.agent)]
    return replace(access, routes=tuple(dict.fromkeys(route for key in needed if (route := access.route(key)))))


def _release(site: NodeSite) -> dict[str, str]:
    """How the VM removes itself; see `node/__init__.py`."""
    arm, alone, of_set = site.account.arm.rstrip("/"), site.role_scope == site.group, site.place.set
    force = f"forceDeletionTypes={quote(FORCED)}" if alone else "forceDeletion=true"
    removed, version = (site.group, GROUPS_API) if alone else (site.node, COMPUTE)
    token_url = f"{TOKENS}&resource={quote(site.account.arm, safe='')}"
    instead_url = f"{arm}{MACHINE if of_set else site.vm}/deallocate?api-version={COMPUTE}"
    return {
        "url": f"{arm}{removed}?api-version={version}&{force}",
        "token_url": f"{token_url}&msi_res_id={quote(site.identity, safe='')}" if of_set else token_url,
        # A role assigned to a scale set does not apply to its instances.
        "instead_url": instead_url if alone or not of_set else "",
    }


def signed_url(access: Access, key: str) -> str:
    """A URL that reads the key without further credentials."""
    route = access.route(key)
    if route is None or not route.token or "?" in route.url or not route.url.startswith("http"):
        hint = "use a store in Azure Blob: stoker store add, then stoker store use"
        what = "a VM in Azure cannot reach the store of this workspace"
        raise ProviderFailed(what, hint=hint, cause=Cause.STORE_OUT_OF_REACH)
    inside = f"/{quote(key.removeprefix(route.prefix))}" if not route.one else ""
    return f"{route.url.rstrip('/')}{inside}?{route.token}"


CONFIG = "/etc/stoker/node.json"  # 0600: it contains the key of this VM's encrypted settings, and no secret of a run
PRIVATE = "/run/stoker"  # in memory: lost at shutdown
BOOT = "/usr/local/lib/stoker/boot.py"
UNIT = "stoker-agent.service"
ENGINE = "/usr/local/lib/stoker/engine.sh"
_MOST_BYTES = 60_000  # Azure accepts 65,535


@dataclass(frozen=True, slots=True)
class Boot:
    """`agent_url` is the URL of the packed agent, with a token; `agent_sha256` is its expected hash."""

    agent_url: str
    agent_sha256: str
    store: str
    orders: str
    lease_s: float  # how long the VM may run without contact to the server
    release: dict[str, str]  # how it then removes itself; see `node/__init__.py`
    arguments: dict[str, str]  # further arguments of the agent
    variables: dict[str, str]  # what decrypts the rest, which is in the store
    spend: dict[str, Any] = field(
        default_factory=dict
    )  # how long it may be billed, see `agent/machine/tenant.py`; empty: no limit
    idle_s: float = 600.0  # as `lease_s`, while it has no run
    sealed: bool = True


# Runs on any Python 3 of the image. An interrupted download leaves no file; the delay between retries grows.
_BOOT_SCRIPT = '''\
"""Fetches Stoker's agent and becomes it. Started by systemd at every boot."""
import hashlib, json, os, sys, time, urllib.request

with open("/etc/stoker/node.json") as file:
    node = json.load(file)
def leave():
    """The agent cannot be fetched, for example because the token has expired: remove this VM, as the agent would."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while True:
        try:
            ask = urllib.request.Request(node["release"]["token_url"], headers={"Metadata": "true"})
            with direct.open(ask, timeout=30) as answer:
                token = {"Authorization": "Bearer " + json.load(answer)["access_token"]}
            ask = urllib.request.Request(node["release"]["url"], headers=token, method="DELETE")
            urllib.request.urlopen(ask, timeout=30)
        except (OSError, ValueError, KeyError) as error:
            print("could not remove this VM: %s" % error, file=sys.stderr, flush=True)
        time.sleep(30)

place = "/var/lib/stoker/agent-%s.pyz" % node["agent_sha256"][:16]
until = time.monotonic() + 3 * node["idle_s"]
os.makedirs("/var/lib/stoker", mode=0o700, exist_ok=True)
wait = 0.2
while not os.path.exists(place):
    try:
        with urllib.request.urlopen(node["agent_url"], timeout=60) as answer:
            data = answer.read()
        if hashlib.sha256(data).hexdigest() != node["agent_sha256"]:
            raise OSError("checksum mismatch")
        with open(place + ".part", "wb") as file:
            file.write(data)
        os.replace(place + ".part", place)
    except OSError as error:
        print("could not download the agent: %s" % error, file=sys.stderr, flush=True)
        if time.monotonic() > until:
            leave()
        time.sleep(wait)
        wait = min(wait * 2, 30)
os.execv(sys.executable, [sys.executable, "-I", "-S", place, "tenant", "--config", "/etc/stoker/node.json"])
'''

_UNIT_TEXT = f"""\
[Unit]
Description=Stoker's agent
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=0

[Service]
ExecStart=/usr/bin/env python3 {BOOT}
Restart=on-failure
RestartSec=1
KillMode=mixed
TimeoutStopSec=60

[Install]
WantedBy=multi-user.target
"""


# Images for GPUs have both already; the others have none. It may run several times.
_ENGINE_SCRIPT = """\
#!/bin/sh
# Installs a container engine, and what gives containers the GPUs of NVIDIA.
set -e
export DEBIAN_FRONTEND=noninteractive
install() {
  apt-get -o DPkg::Lock::Timeout=600 -q update
  apt-get -o DPkg::Lock::Timeout=600 -q install -y --no-install-recommends "$@"
}
if ! command -v docker >/dev/null && ! command -v podman >/dev/null; then install docker.io; fi
[ -e /dev/nvidiactl ] || exit 0
if ! command -v nvidia-ctk >/dev/null; then
  pages=https://nvidia.github.io/libnvidia-container key=/usr/share/keyrings/nvidia-container-toolkit.gpg
  curl -fsSL $pages/gpgkey | gpg --yes --dearmor -o $key
  curl -fsSL $pages/stable/deb/nvidia-container-toolkit.list | sed "s#deb https#deb [signed-by=$key] https#" \\
    > /etc/apt/sources.list.d/nvidia-container-toolkit.list
  install nvidia-container-toolkit
fi
if command -v docker >/dev/null; then
  nvidia-ctk runtime configure --runtime=docker
  systemctl restart docker
else
  nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml
fi
"""

_ENGINE_UNIT_TEXT = f"""\
[Unit]
Description=A container engine for Stoker's runs

[Service]
Type=oneshot
ExecStart=/bin/sh {ENGINE}
"""


def custom_data(boot: Boot) -> str:
    """The cloud-init document. JSON is YAML, so nothing in it can be misread. Raises ValueError if it is too long."""
    folders = {
        "--folder": "/var/lib/stoker/node",
        "--environments": "/var/lib/stoker/environments",
        "--private": PRIVATE,
    }
    config = {**asdict(boot), "arguments": {**folders, **boot.arguments}}
    files = [
        _file(CONFIG, json.dumps(config), "0600"),
        _file(BOOT, _BOOT_SCRIPT, "0644"),
        _file(f"/etc/systemd/system/{UNIT}", _UNIT_TEXT, "0644"),
        _file(ENGINE, _ENGINE_SCRIPT, "0644"),
        _file(f"/etc/systemd/system/{ENGINE_UNIT}", _ENGINE_UNIT_TEXT, "0644"),
    ]
    commands = [["systemctl", "daemon-reload"], ["systemctl", "enable", "--now", UNIT]]
    text = "#cloud-config\n" + json.dumps({"write_files": files, "runcmd": commands}, indent=1) + "\n"
    if len(text.encode()) > _MOST_BYTES:
        raise ValueError(f"the custom data has {len(text.encode()):,} bytes, more than a VM accepts")
    return text


def _file(path: str, content: str, mode: str) -> dict[str, str]:
    return {"path": path, "permissions": mode, "owner": "root:root", "content": content}
