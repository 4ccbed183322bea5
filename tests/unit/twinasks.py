"""A cloud without a network or a clock: requests go straight to the transitions, and chores are done on order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from stoker.twin import ids, state
from stoker.twin.arm import bodies, dispatch
from stoker.twin.arm.ask import ArmAnswer, Ask
from stoker.twin.state import CloudState, Instance
from stoker.twin.time import passing
from stoker.twin.time.weather import Weather

GROUP = "g"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f me"
IMAGE = {
    "publisher": "Canonical",
    "offer": "0001-com-ubuntu-server-jammy",
    "sku": "22_04-lts-gen2",
    "version": "latest",
}
REGION = "westeurope"
VERSION = "2024-07-01"


def wall(moment: float) -> datetime:
    return datetime.fromtimestamp(1_800_000_000 + moment, UTC)


class Asker:
    """One caller after another; `now` moves by `pass_time`, which also does the chores that are waiting."""

    def __init__(self, weather: Weather | None = None) -> None:
        self.cloud: CloudState = state.fresh(weather or Weather())
        self.now = 0.0
        self.done: list[tuple[str, str]] = []  # the verb and VM of every chore
        self.claims: Mapping[str, Any] = {"appid": self.cloud.admin, "oid": "owner"}

    def ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        subscription: str = "",
        version: str | None = None,
        **query: str,
    ) -> ArmAnswer:
        """`path` below the subscription. What is refused is raised, and changes nothing."""
        whole = f"/subscriptions/{subscription or self.cloud.subscription}{path}"
        self.cloud = replace(self.cloud, requests=self.cloud.requests + 1, now=self.now)
        target, number = ids.read(whole), self.cloud.requests
        known = bodies.versions_of(bodies.kind_of(target))
        usual = VERSION if VERSION in known else known[-1]
        query = {
            "api-version": usual if version is None else version,
            **{name.replace("_", "$"): value for name, value in query.items()},
        }
        ask = Ask(method, whole, target, self.now, wall, query, body or {}, self.claims, "https://twin", number)
        cloud, answer = dispatch.answer(self.cloud, ask)
        self.cloud = cloud
        return answer

    def pass_time(self, seconds: float = 0.0, *, chores: bool = True) -> None:
        self.now += seconds
        for _ in range(10):
            self.cloud = passing.advance(replace(self.cloud, now=self.now), self.now, wall)
            if not chores or not self.cloud.chores:
                break
            for chore in self.cloud.chores.values():
                self.done.append((chore.verb, chore.vm.rsplit("/", 1)[-1]))
                result = {"value": [{"message": chore.details["script"]}]} if chore.verb == "run" else None
                self.cloud = passing.performed(self.cloud, chore.id, result, "")
        self.cloud = passing.advance(self.cloud, self.now, wall)

    def group(self, name: str = GROUP, **tags: str) -> ArmAnswer:
        return self.ask("PUT", f"/resourceGroups/{name}", {"location": REGION, "tags": tags})

    def network(self) -> str:
        """The id of a subnet in the group."""
        body = {
            "location": REGION,
            "properties": {
                "addressSpace": {"addressPrefixes": ["10.0.0.0/16"]},
                "subnets": [{"name": "nodes", "properties": {"addressPrefix": "10.0.0.0/24"}}],
            },
        }
        answer = self.ask("PUT", f"{self.inside('Microsoft.Network/virtualNetworks')}/net", body)
        return str(answer.body["properties"]["subnets"][0]["id"])

    def vm(self, name: str = "vm", **changes: Any) -> ArmAnswer:
        return self.ask("PUT", self.path(name), self.vm_body(name, **changes))

    def ready_vm(self, name: str = "vm", **changes: Any) -> Instance:
        """A group, a network and a VM that runs."""
        if self.cloud.find(ids.group_id(self.cloud.subscription, GROUP)) is None:
            self.group()
            self.network()
        self.vm(name, **changes)
        self.pass_time(2.0)
        return self.instance(name)

    def instance(self, name: str = "vm") -> Instance:
        instance = self.cloud.instance(f"/subscriptions/{self.cloud.subscription}{self.path(name)}")
        assert instance
        return instance

    def vm_body(self, name: str, size: str = "Standard_D4s_v5", tags: Any = None, **properties: Any) -> dict[str, Any]:
        network = f"{self.inside('Microsoft.Network/virtualNetworks')}/net"
        subnet = f"/subscriptions/{self.cloud.subscription}{network}/subnets/nodes"
        address = {"name": "ip", "properties": {"subnet": {"id": subnet}}}
        nic = {"name": f"{name}-nic", "properties": {"deleteOption": "Delete", "ipConfigurations": [address]}}
        return {
            "location": REGION,
            "tags": tags or {},
            "properties": {
                "hardwareProfile": {"vmSize": size},
                "storageProfile": {
                    "imageReference": IMAGE,
                    "osDisk": {"createOption": "FromImage", "deleteOption": "Delete"},
                },
                "osProfile": {
                    "computerName": name,
                    "adminUsername": "me",
                    "customData": "IyEvYmluL3NoCg==",
                    "linuxConfiguration": {
                        "disablePasswordAuthentication": True,
                        "ssh": {"publicKeys": [{"path": "/home/me/.ssh/authorized_keys", "keyData": KEY}]},
                    },
                },
                "networkProfile": {"networkApiVersion": "2022-07-01", "networkInterfaceConfigurations": [nic]},
                **properties,
            },
        }

    def inside(self, kind: str) -> str:
        return f"/resourceGroups/{GROUP}/providers/{kind}"

    def path(self, name: str = "vm", action: str = "") -> str:
        return self.inside("Microsoft.Compute/virtualMachines") + f"/{name}" + (f"/{action}" if action else "")

    def power(self, name: str = "vm") -> str:
        return str(self.instance(name).power)

    def kinds(self) -> list[str]:
        """The existing resources, by the last word of their kind."""
        return sorted(one.kind.rsplit("/", 1)[-1] for one in self.cloud.resources.values())
