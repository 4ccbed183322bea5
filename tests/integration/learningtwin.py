"""A twin with an Azure ML workspace, and the official SDK in a Python of its own."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from azuretwin import Cloud
from shell import Shell

PYTHON = Path(__file__).parents[2] / ".venv-azureml" / "bin" / "python"
GROUP, WORKSPACE, ACCOUNT = "ml", "AzureMLDemo", "mlstore"
_LEARNING = "2024-04-01"


@contextmanager
def learning_twin(root: Path) -> Iterator[Cloud]:
    (root / "project").mkdir()
    keep = {name: os.environ[name] for name in os.environ if not name.startswith(("STOKER_", "PYTHON"))}
    shell = Shell(root / "home", root / "project", {**keep, "STOKER_HOME": str(root / "home")})
    try:
        yield Cloud(json.loads(shell.stoker("twin", "up", "--json").stdout)["twin"])
    finally:
        shell.stoker("twin", "down", "--forget", code=None)


def made_workspace(cloud: Cloud) -> str:
    """The id of a new workspace with its storage account."""
    top = f"/resourceGroups/{GROUP}"
    cloud.arm("PUT", top, {"location": "eastus"})
    kind = {"location": "eastus", "sku": {"name": "Standard_LRS"}, "kind": "StorageV2"}
    account = cloud.arm("PUT", f"{top}/providers/Microsoft.Storage/storageAccounts/{ACCOUNT}", kind, "2023-05-01")
    body = {"location": "eastus", "properties": {"storageAccount": account["id"]}}
    place = f"{top}/providers/Microsoft.MachineLearningServices/workspaces/{WORKSPACE}"
    return str(cloud.arm("PUT", place, body, _LEARNING)["id"])


def sdk(cloud: Cloud, folder: Path, script: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs a script with `azure-ai-ml`, as on a computer that resolves names below `localhost` and trusts the twin."""
    assert PYTHON.exists(), "azure-ai-ml is missing; try: make .venv-azureml/installed"
    hosts, file = folder / "hosts", folder / "script.py"
    hosts.write_text(f"{Path('/etc/hosts').read_text()}\n127.0.0.1 {ACCOUNT}.blob.core.localhost\n")
    file.write_text(script)
    told = cloud.told
    environ: Mapping[str, str] = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "ARM_CLOUD_METADATA_URL": f"{told['url']}/metadata/endpoints?api-version=2022-09-01",
        "AZUREML_CURRENT_CLOUD": "StokerTwin",
        "REQUESTS_CA_BUNDLE": told["authority"],
        "AZUREML_RUN_POLLING_INTERVAL_MIN": "1",
        "TOLD": json.dumps({**told, "group": GROUP, "workspace": WORKSPACE}),
    }
    enter = f'mount --bind "{hosts}" /etc/hosts && exec "$@"'
    command = ["unshare", "--mount", "sh", "-c", enter, "sh", str(PYTHON), str(file), *words]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=400, cwd=folder)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done


def last_line(done: subprocess.CompletedProcess[str]) -> Any:
    return json.loads(done.stdout.strip().splitlines()[-1])
