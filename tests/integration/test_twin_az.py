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
