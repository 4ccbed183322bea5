"""A spot VM of the twin, used like Azure: it gets an eviction notice, is evicted, and started again from its disk."""

from __future__ import annotations

import base64
import json
import os
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import pytest

from stoker.twin.machines.opening import open_machines
from stoker.twin.twin import Twin, TwinAddress
from stoker.twin.web import server

KINDS = ["walled", "plain"]
COMPUTE = "2024-07-01"
NETWORK = "2024-05-01"
# Counts its boots on its disk, and records the first eviction notice.
WITNESS = """\
import json, time, urllib.request
from pathlib import Path
with Path("/var/lib/witness/boots").open("a") as boots:
    boots.write("boot\\n")
URL = "http://169.254.169.254/metadata/scheduledevents?api-version=2020-07-01"
while True:
    question = urllib.request.Request(URL, headers={"Metadata": "true"})
    told = json.load(urllib.request.urlopen(question))
    events = [event["EventType"] + " " + event["Resources"][0] for event in told["Events"]]
    if events:
        part = Path("/var/lib/witness/events.part")  # whole or not at all, for the power may go at any moment
        part.write_text("".join(f"{event}\\n" for event in events))
        part.rename("/var/lib/witness/events")
    time.sleep(0.1)
"""
UNIT = """\
[Service]
ExecStart=python3 /var/lib/witness/witness.py
Restart=on-failure
[Install]
WantedBy=multi-user.target
"""
CUSTOM_DATA = "#cloud-config\n" + json.dumps(
    {
        "write_files": [
            {"path": "/var/lib/witness/witness.py", "content": WITNESS},
            {"path": "/etc/systemd/system/witness.service", "content": UNIT},
        ],
        "runcmd": [["systemctl", "enable", "--now", "witness.service"]],
    }
)


class Azure:
    """The few requests that this story needs, sent like any Azure client."""

    def __init__(self, address: TwinAddress) -> None:
        self._url = address.url
        self._context = ssl.create_default_context(cafile=address.authority)
        self._group = f"/subscriptions/{address.subscription}/resourceGroups/g"
        secret = {"client_id": address.client_id, "client_secret": address.client_secret}
        form = {"grant_type": "client_credentials", "scope": f"{address.url}/.default", **secret}
        url = f"{address.url}/{address.tenant}/oauth2/v2.0/token"
        with urlopen(Request(url, urlencode(form).encode()), context=self._context) as answer:
            self._token = json.load(answer)["access_token"]

    def ask(self, method: str, path: str, version: str, body: Any = None) -> Any:
        url = path if path.startswith("https:") else f"{self._url}{path}?api-version={version}"
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        with urlopen(Request(url, data, headers, method=method), context=self._context, timeout=30) as answer:
            text = answer.read()
            follow = answer.headers.get("Azure-AsyncOperation")
        if follow and method != "GET":
            self._follow(follow)
        return json.loads(text) if text else None

    def _follow(self, url: str) -> None:
        state = until(lambda: (found := self.ask("GET", url, ""))["status"] not in ("InProgress", "Running") and found)
        assert state["status"] == "Succeeded", state

    def make_vm(self) -> None:
        self.ask("PUT", self._group, "2024-03-01", {"location": "westeurope"})
        network = f"{self._group}/providers/Microsoft.Network/virtualNetworks/net"
        subnet = {"name": "default", "properties": {"addressPrefix": "10.0.0.0/24"}}
        space = {"addressSpace": {"addressPrefixes": ["10.0.0.0/16"]}, "subnets": [subnet]}
        self.ask("PUT", network, NETWORK, {"location": "westeurope", "properties": space})
        nic = f"{self._group}/providers/Microsoft.Network/networkInterfaces/nic"
        place = {"name": "ip", "properties": {"subnet": {"id": f"{network}/subnets/default"}}}
        self.ask("PUT", nic, NETWORK, {"location": "westeurope", "properties": {"ipConfigurations": [place]}})
        self.ask("PUT", self.vm, COMPUTE, _vm(nic))

    @property
    def vm(self) -> str:
        return f"{self._group}/providers/Microsoft.Compute/virtualMachines/spot"

    def power(self) -> str:
        view = self.ask("GET", f"{self.vm}/instanceView", COMPUTE)
        codes: list[str] = [one["code"] for one in view["statuses"]]
        return next(code for code in codes if code.startswith("PowerState/"))

    def run(self, script: str) -> str:
        """Standard output of a command in the machine."""
        order = {"commandId": "RunShellScript", "script": [script]}
        said: str = self._run(order)["value"][0]["message"]
        return said.split("[stdout]\n")[1].split("\n[stderr]")[0]

    def _run(self, order: dict[str, Any]) -> Any:
        url = f"{self._url}{self.vm}/runCommand?api-version={COMPUTE}"
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        request = Request(url, json.dumps(order).encode(), headers, method="POST")
        with urlopen(request, context=self._context, timeout=30) as answer:
            place = answer.headers["Location"]
        return until(lambda: self.ask("GET", place, ""))

    def delete_group(self) -> None:
        self.ask("DELETE", self._group, "2024-03-01")

    def group_is_gone(self) -> bool:
        try:
            self.ask("GET", self._group, "2024-03-01")
        except HTTPError as error:
            return error.code == 404
        return False


KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f me"


def _vm(nic: str) -> dict[str, Any]:
    image = {"publisher": "Canonical", "offer": "ubuntu-24_04-lts", "sku": "server", "version": "latest"}
    keys = {"publicKeys": [{"path": "/home/me/.ssh/authorized_keys", "keyData": KEY}]}
    profile = {
        "computerName": "spot",
        "adminUsername": "me",
        "customData": base64.b64encode(CUSTOM_DATA.encode()).decode(),
        "linuxConfiguration": {"disablePasswordAuthentication": True, "ssh": keys},
    }
    return {
        "location": "westeurope",
        "identity": {"type": "SystemAssigned"},
        "properties": {
            "hardwareProfile": {"vmSize": "Standard_D2s_v5"},
            "storageProfile": {
                "imageReference": image,
                "osDisk": {"createOption": "FromImage", "deleteOption": "Delete"},
            },
            "osProfile": profile,
            "networkProfile": {"networkInterfaces": [{"id": nic}]},
            "priority": "Spot",
            "evictionPolicy": "Deallocate",
            "billingProfile": {"maxPrice": -1},
        },
    }


def until(what: Callable[[], Any], within_s: float = 45.0) -> Any:
    end = time.monotonic() + within_s
    while not (found := what()):
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)
    return found


@pytest.fixture(params=KINDS)
def twin(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Twin]:
    folder = tmp_path / "twin"
    running = Twin(
        folder,
        lambda world: open_machines(
            folder / "machines",
            world.token_for,
            acknowledged=world.acknowledged,
            walls=request.param == "walled",
            authority=server.certificate(folder / "tls").authority,
        ),
        speed=12.0,  # a notice of 30 seconds passes in 2.5
    )
    running.start()
    yield running
    for name in running.machines.names():
        running.machines.destroy(name)
    running.close()


def test_a_machine_gets_a_notice_is_evicted_and_boots_again_with_its_disk(twin: Twin) -> None:
    azure = Azure(twin.address)
    azure.make_vm()
    until(lambda: azure.run("cat /var/lib/witness/boots 2>/dev/null") == "boot\n")
    azure.ask("POST", f"{azure.vm}/simulateEviction", COMPUTE)
    (machine,) = twin.machines.names()
    until(lambda: azure.power() == "PowerState/deallocated")
    assert not twin.machines.alive(machine)
    azure.ask("POST", f"{azure.vm}/start", COMPUTE)
    assert azure.power() == "PowerState/running"
    until(lambda: azure.run("cat /var/lib/witness/boots") == "boot\nboot\n")
    assert azure.run("cat /var/lib/witness/events") == "Preempt spot\n"
    azure.delete_group()
    until(azure.group_is_gone)
    assert twin.machines.names() == []


def test_a_machine_reaches_the_twin_over_tls_in_its_own_name_and_may_not_do_what_it_was_not_given(twin: Twin) -> None:
    azure = Azure(twin.address)
    azure.make_vm()
    script = f"""#!/usr/bin/env python3
import json, urllib.error, urllib.request
base = "http://169.254.169.254/metadata/identity/oauth2/token?api-version=2018-02-01&resource={twin.address.url}"
question = urllib.request.Request(base, headers={{"Metadata": "true"}})
token = json.load(urllib.request.urlopen(question))["access_token"]
url = "{twin.address.url}{azure.vm}?api-version={COMPUTE}"
try:
    urllib.request.urlopen(urllib.request.Request(url, headers={{"Authorization": "Bearer " + token}}))
except urllib.error.HTTPError as error:
    print(error.code, json.load(error)["error"]["code"])
"""
    (machine,) = twin.machines.names()
    assert twin.machines.run_command(machine, script, 30) == (0, "403 AuthorizationFailed\n", "")


class Program:
    """`python -m stoker.twin` in a home of its own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._child: subprocess.Popen[bytes] | None = None

    def start(self) -> TwinAddress:
        environment = {**os.environ, "STOKER_HOME": str(self.home)}
        with (self.home / "log").open("ab") as log:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "stoker.twin"], env=environment, stdout=log, stderr=log
            )
        told = until(self._told)
        return TwinAddress(**{one.name: told[one.name] for one in fields(TwinAddress)})

    def _told(self) -> dict[str, Any] | None:
        assert self._child and self._child.poll() is None, (self.home / "log").read_text()
        try:
            told: dict[str, Any] = json.loads((self.home / "twin" / "twin.json").read_bytes())
        except FileNotFoundError:
            return None
        return told if told["pid"] == self._child.pid else None

    def kill(self) -> None:
        if self._child:
            self._child.kill()
            self._child.wait()


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    made = Program(tmp_path)
    yield made
    made.kill()
    left = open_machines(tmp_path / "twin" / "machines", lambda _name, _resource: {})
    for name in left.names():
        left.destroy(name)
    left.close()


def test_a_machine_continues_while_its_cloud_is_killed_and_comes_back(program: Program) -> None:
    azure = Azure(program.start())
    azure.make_vm()
    booted = "stat -c %y /run/twin/init.sock"
    before = until(lambda: azure.run(f"test -f /var/lib/witness/boots && {booted}"))
    program.kill()
    azure = Azure(program.start())
    assert azure.power() == "PowerState/running"
    assert azure.run(booted) == before
    url = "http://169.254.169.254/metadata/instance/compute/name?api-version=2021-02-01&format=text"
    assert azure.run(f"curl -s -H Metadata:true '{url}'") == "spot"
    azure.delete_group()
    until(azure.group_is_gone)
    assert [path.name for path in (program.home / "twin" / "machines").iterdir() if path.is_dir()] == []
