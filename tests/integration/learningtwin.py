"""A twin with an Azure ML workspace, and the official SDK in a Python of its own."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

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


def _has_blobs(cloud: Cloud) -> bool:
    """Azurite takes its time on a busy computer."""
    try:
        return bool(cloud.ask("blob", start=True))
    except TimeoutError:
        return False


def made_workspace(cloud: Cloud) -> str:
    """The id of a new workspace with its storage account."""
    assert any(_has_blobs(cloud) for _ in range(5)), "the twin's Blob service does not answer"
    top = f"/resourceGroups/{GROUP}"
    cloud.arm("PUT", top, {"location": "eastus"})
    kind = {"location": "eastus", "sku": {"name": "Standard_LRS"}, "kind": "StorageV2"}
    account = cloud.arm("PUT", f"{top}/providers/Microsoft.Storage/storageAccounts/{ACCOUNT}", kind, "2023-05-01")
    body = {"location": "eastus", "properties": {"storageAccount": account["id"]}}
    place = f"{top}/providers/Microsoft.MachineLearningServices/workspaces/{WORKSPACE}"
    return str(cloud.arm("PUT", place, body, _LEARNING)["id"])


def set_up_learning(home: Path, cloud: Cloud, workspace: str, compute: str = "") -> None:
    """What a user of the workspace writes: the login, and which workspace."""
    told, secret = cloud.told, home / "azure.secret"
    secret.write_text(told["client_secret"])
    secret.chmod(0o600)
    login = {"subscription": told["subscription"], "tenant": told["tenant"], "client": told["client_id"]}
    places = {"arm": told["url"], "login": told["url"], "prices": f"{told['url']}/api/retail/prices"}
    account = {**login, **places, "secret_file": str(secret), "ca_file": told["authority"], "regions": ["eastus"]}
    (home / "azure.json").write_text(json.dumps(account))
    (home / "azureml.json").write_text(json.dumps({"workspace": workspace, "compute": compute}))


def node_of(cloud: Cloud, workspace: str, compute: str, job: str) -> str:
    """The id of the VM on which a job runs; empty while there is none."""
    place = workspace.partition(cloud.told["subscription"])[2]
    told = cloud.arm("POST", f"{place}/computes/{compute}/listNodes", {}, _LEARNING)["nodes"]
    names = [one["nodeId"] for one in told if one["runId"] and one["runId"].endswith(job)]
    return next((vm for vm in cloud.running() if names and vm.endswith(f"/{names[0]}")), "")


def tracked(cloud: Cloud, workspace: str, job: str) -> Any:
    """A job as MLflow's tracking has it."""
    told = cloud.told
    context = ssl.create_default_context(cafile=told["authority"])
    form = f"grant_type=client_credentials&client_id={told['client_id']}&client_secret={told['client_secret']}&scope=ml"
    with urlopen(
        Request(f"{told['url']}/{told['tenant']}/oauth2/v2.0/token", form.encode()), context=context
    ) as answer:
        headers = {"Authorization": f"Bearer {json.load(answer)['access_token']}"}
    url = f"{told['url']}/mlflow/v1.0{workspace}/api/2.0/mlflow/runs/get?run_id={job}"
    with urlopen(Request(url, headers=headers), context=context) as answer:
        return json.load(answer)


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
