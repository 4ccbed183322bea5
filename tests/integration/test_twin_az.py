"""Azure's own command line, unmodified, drives the twin from nothing to a VM and back to nothing."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker.testing.twin import TwinHandle, real_machines
from stoker.twin.twin import Twin

AZ = Path(__file__).parents[2] / ".venv-az" / "bin" / "az"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


class Az:
    def __init__(self, twin: TwinHandle, folder: Path) -> None:
        assert AZ.exists(), "the az command line is missing; try: make .venv-az/installed"
        self._environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "AZURE_CONFIG_DIR": str(folder / "azure"),
            "AZURE_CORE_COLLECT_TELEMETRY": "no",
            "REQUESTS_CA_BUNDLE": twin.address.authority,
        }
        address = twin.address
        self("cloud", "register", "--name", "twin", "--endpoint-resource-manager", address.url)
        self("cloud", "set", "--name", "twin")
        self("config", "set", "core.instance_discovery=false")
        secret = ("--username", address.client_id, "--password", address.client_secret)
        self("login", "--service-principal", *secret, "--tenant", address.tenant)

    def __call__(self, *words: str) -> Any:
        done = subprocess.run(
            [str(AZ), *words, "--output", "json"], env=self._environ, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, f"az {' '.join(words)}: {done.stderr}"
        return json.loads(done.stdout) if done.stdout.strip() else None


@pytest.fixture
def twin(tmp_path: Path) -> Iterator[TwinHandle]:
    whole = Twin(tmp_path / "twin", real_machines(tmp_path / "twin"))
    whole.start()
    yield TwinHandle(whole)
    whole.power_down()
    whole.close()


def test_az_makes_commands_evicts_restarts_and_removes_a_vm(twin: TwinHandle, tmp_path: Path) -> None:
    az = Az(twin, tmp_path)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "key")], check=True)
    assert az("group", "create", "--name", "demo", "--location", "westeurope")["name"] == "demo"
    made = az(
        *("vm", "create", "--resource-group", "demo", "--name", "box", "--image", "Ubuntu2204"),
        *("--size", "Standard_D2s_v5", "--priority", "Spot", "--eviction-policy", "Deallocate", "--max-price", "-1"),
        *("--admin-username", "me", "--ssh-key-values", str(tmp_path / "key.pub")),
    )
    assert (made["powerState"], made["privateIpAddress"]) == ("VM running", "10.0.0.4")
    box = ("--resource-group", "demo", "--name", "box")
    command = az(
        "vm", "run-command", "invoke", *box, "--command-id", "RunShellScript", "--scripts", "echo I am $(uname -n)"
    )
    assert "[stdout]\nI am " in command["value"][0]["message"]
    (found,) = az("vm", "list-ip-addresses", *box)
    assert found["virtualMachine"]["network"]["privateIpAddresses"] == ["10.0.0.4"]
    assert found["virtualMachine"]["network"]["publicIpAddresses"][0]["ipAddress"] == made["publicIpAddress"]
    az("vm", "restart", *box)
    assert [one.boots for one in twin.cloud.instances.values()] == [2]
    az("vm", "simulate-eviction", *box)
    twin.order("speed", speed=100)
    twin.wait(lambda cloud: [one for one in cloud.instances.values() if str(one.power) == "deallocated"])
    statuses = az("vm", "get-instance-view", *box)["instanceView"]["statuses"]
    assert statuses[-1]["code"] == "PowerState/deallocated"
    az("group", "delete", "--name", "demo", "--yes")
    assert az("resource", "list") == []
    assert not twin.cloud.resources
    assert twin.ask("status")["usd_per_hour"] == 0


TEMPLATE = """{
  "$schema": "https://schema.management.azure.com/schemas/2019-04-01/deploymentTemplate.json#",
  "contentVersion": "1.0.0.0",
  // az sends this text as it is, comments and all
  "parameters": {"name": {"type": "string", "defaultValue": "net"}},
  "resources": [{
    "type": "Microsoft.Network/virtualNetworks", "apiVersion": "2024-05-01", "name": "[parameters('name')]",
    "location": "[resourceGroup().location]",
    "properties": {"addressSpace": {"addressPrefixes": ["10.9.0.0/16"]}},
  }],
  "outputs": {"name": {"type": "string", "value": "[parameters('name')]"}}
}"""


def test_az_works_with_disks_extensions_templates_and_roles(twin: TwinHandle, tmp_path: Path) -> None:
    az = Az(twin, tmp_path)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "key")], check=True)
    group = ("--resource-group", "demo")
    az("group", "create", "--name", "demo", "--location", "westeurope")
    user = ("--admin-username", "me", "--ssh-key-values", str(tmp_path / "key.pub"))
    az("vm", "create", *group, "--name", "box", "--image", "Ubuntu2204", "--size", "Standard_NC4as_T4_v3", *user)
    assert az("disk", "create", *group, "--name", "data", "--size-gb", "64")["diskSizeGB"] == 64
    az("vm", "disk", "attach", *group, "--vm-name", "box", "--name", "data")
    assert az("disk", "show", *group, "--name", "data")["managedBy"].endswith("/box")
    az("vm", "disk", "detach", *group, "--vm-name", "box", "--name", "data")
    assert az("disk", "show", *group, "--name", "data")["diskState"] == "Unattached"
    az("disk", "delete", *group, "--name", "data", "--yes")

    box = (*group, "--vm-name", "box")
    script = ("--name", "CustomScript", "--publisher", "Microsoft.Azure.Extensions")
    az("vm", "extension", "set", *box, *script, "--settings", json.dumps({"commandToExecute": "touch /tmp/ran"}))
    told = az("vm", "run-command", "invoke", *group, "--name", "box", *COMMAND, "--scripts", "ls /tmp/ran")
    assert "[stdout]\n/tmp/ran" in told["value"][0]["message"]
    driver = az("vm", "extension", "set", *box, "--name", "NvidiaGpuDriverLinux", "--publisher", "Microsoft.HpcCompute")
    assert driver["provisioningState"] == "Succeeded"
    told = az("vm", "run-command", "invoke", *group, "--name", "box", *COMMAND, "--scripts", "nvidia-smi -L")
    assert "[stdout]\nGPU 0: NVIDIA T4" in told["value"][0]["message"]

    (tmp_path / "net.json").write_text(TEMPLATE)
    az("deployment", "group", "validate", *group, "--template-file", str(tmp_path / "net.json"))
    made = az("deployment", "group", "create", *group, "--template-file", str(tmp_path / "net.json"))
    assert made["properties"]["outputs"]["name"]["value"] == "net"

    somebody = az("identity", "create", *group, "--name", "somebody")["principalId"]
    scope = ("--scope", f"/subscriptions/{twin.address.subscription}")
    az("role", "assignment", "create", "--role", "Reader", "--assignee", somebody, *scope)
    assert len(az("role", "assignment", "list", "--assignee", somebody, *scope)) == 1
    az("role", "assignment", "delete", "--assignee", somebody, *scope)
    assert az("role", "assignment", "list", "--assignee", somebody, *scope) == []


COMMAND = ("--command-id", "RunShellScript")


def test_az_lists_shows_scales_and_deletes_a_scale_set_whose_instance_is_restored(
    twin: TwinHandle, tmp_path: Path
) -> None:
    az = Az(twin, tmp_path)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "key")], check=True)
    group = ("--resource-group", "demo")
    az("group", "create", "--name", "demo", "--location", "westeurope")
    az(
        *("vmss", "create", *group, "--name", "set", "--orchestration-mode", "Flexible", "--image", "Ubuntu2204"),
        *("--vm-sku", "Standard_D2s_v5", "--instance-count", "1", "--load-balancer", "", "--public-ip-per-vm"),
        *("--priority", "Spot", "--eviction-policy", "Delete", "--max-price", "-1", "--security-type", "Standard"),
        *("--enable-spot-restore", "true", "--spot-restore-timeout", "PT1H", "--platform-fault-domain-count", "1"),
        *("--admin-username", "me", "--ssh-key-values", str(tmp_path / "key.pub")),
    )
    found = az("vmss", "show", *group, "--name", "set")
    assert (found["orchestrationMode"], found["sku"]["capacity"]) == ("Flexible", 1)
    assert found["spotRestorePolicy"] == {"enabled": True, "restoreTimeout": "PT1H"}
    assert [one["name"] for one in az("vmss", "list", *group)] == ["set"]
    (first,) = az("vmss", "list-instances", *group, "--name", "set")
    az("vm", "simulate-eviction", *group, "--name", first["name"])
    twin.order("weather", restore_s=0.0)
    twin.order("speed", speed=100)
    twin.wait(lambda cloud: [one for one in cloud.instances.values() if first["name"] not in one.vm], 60)
    twin.order("speed", speed=1)
    (second,) = az("vm", "list", *group)
    assert second["name"].startswith("set_") and second["name"] != first["name"]
    az("vmss", "delete", *group, "--name", "set", "--force-deletion", "true")
    assert az("vm", "list", *group) == [] and az("vmss", "list", *group) == []
