"""What a fresh machine is told: fetch the agent, and run it now and at every boot. Pure text."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

CONFIG = "/etc/stoker/node.json"  # 0600: it holds what opens the sealed words for this machine, and no secret of a run
PRIVATE = "/run/stoker"  # in memory: gone when the machine is off
BOOT = "/usr/local/lib/stoker/boot.py"
UNIT = "stoker-agent.service"
_MOST_BYTES = 60_000  # Azure takes 65,535


@dataclass(frozen=True, slots=True)
class Boot:
    """`agent_url` is where the packed agent is, with a token in it; `agent_sha256` is what it must be."""

    agent_url: str
    agent_sha256: str
    store: str
    orders: str
    lease_s: float  # the machine may stay so long without word from the server
    release: dict[str, str]  # how it then removes itself, see `node/release.py`
    arguments: dict[str, str]  # more for the agent
    variables: dict[str, str]  # what opens the rest, which waits in the store
    spend: dict[str, Any] = field(
        default_factory=dict
    )  # how long it may cost, see `agent/machine/tenant.py`; empty: no limit
    idle_s: float = 600.0  # as `lease_s`, once nobody works on it
    sealed: bool = True


# Runs on whatever Python 3 the image has. Nothing is left of a download that broke off; each try waits longer.
_BOOT_SCRIPT = '''\
"""Fetches Stoker's agent and becomes it. Started by systemd at every boot."""
import hashlib, json, os, sys, time, urllib.request

with open("/etc/stoker/node.json") as file:
    node = json.load(file)
def leave():
    """Nobody tells this machine what to do, as when its ticket has ended: it removes itself, as its agent would."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while True:
        try:
            ask = urllib.request.Request(node["release"]["token_url"], headers={"Metadata": "true"})
            with direct.open(ask, timeout=30) as answer:
                token = {"Authorization": "Bearer " + json.load(answer)["access_token"]}
            ask = urllib.request.Request(node["release"]["url"], headers=token, method="DELETE")
            urllib.request.urlopen(ask, timeout=30)
        except (OSError, ValueError, KeyError) as error:
            print("could not remove this machine: %s" % error, file=sys.stderr, flush=True)
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
            raise OSError("the agent came damaged")
        with open(place + ".part", "wb") as file:
            file.write(data)
        os.replace(place + ".part", place)
    except OSError as error:
        print("could not fetch the agent: %s" % error, file=sys.stderr, flush=True)
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
    ]
    commands = [["systemctl", "daemon-reload"], ["systemctl", "enable", "--now", UNIT]]
    text = "#cloud-config\n" + json.dumps({"write_files": files, "runcmd": commands}, indent=1) + "\n"
    if len(text.encode()) > _MOST_BYTES:
        raise ValueError(f"{len(text.encode()):,} bytes are more than a machine can be told at its start")
    return text


def _file(path: str, content: str, mode: str) -> dict[str, str]:
    return {"path": path, "permissions": mode, "owner": "root:root", "content": content}
