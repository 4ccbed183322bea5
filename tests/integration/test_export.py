"""`stoker export mlflow` as a user has it: MLflow's own client, and a store of MLflow's that is read back with it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from shell import Shell

from stoker.model.cause import Cause

MLFLOW = str(Path(__file__).parents[2] / ".services" / "mlflow")  # apart: it wants older versions than others do
SCRIPT = """
    import json, os, pathlib, sys, time
    lr = float(sys.argv[1])
    for step in range(3):
        print(json.dumps({"step": step, "loss": lr / (step + 1), "hr@10": step}), flush=True)
    pathlib.Path("outputs/model.txt").write_text(str(lr))
    while lr == 3 and not pathlib.Path(os.environ["ENOUGH"]).exists():
        time.sleep(0.1)
    print(json.dumps({"step": 3, "loss": 0}), flush=True)
    sys.exit(lr == 2)
"""
READ = """
import json, sys
from mlflow.tracking import MlflowClient
client = MlflowClient(sys.argv[1])
runs = client.search_runs([client.get_experiment_by_name("job").experiment_id])
print(json.dumps({one.info.run_name: {
    "id": one.info.run_id, "status": one.info.status, "params": one.data.params, "tags": one.data.tags,
    "loss": [[m.step, m.value] for m in client.get_metric_history(one.info.run_id, "loss")],
    "metrics": one.data.metrics, "files": [file.path for file in client.list_artifacts(one.info.run_id)],
} for one in runs}))
"""


def read(shell: Shell, url: str) -> dict[str, Any]:
    done = subprocess.run([sys.executable, "-c", READ, url], env=shell.environ, capture_output=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def exported(shell: Shell, url: str) -> tuple[int, int, int]:
    told = json.loads(shell.stoker("export", "mlflow", "job", "--to", url, "--json").stdout)["exported"]
    return told["new"], told["updated"], told["complete"]


@pytest.mark.heavy
@pytest.mark.timeout(300)  # importing MLflow takes long on a busy machine
def test_runs_are_shown_in_mlflow_with_their_history_and_outputs_and_sent_once(shell: Shell, tmp_path: Path) -> None:
    enough, url = tmp_path / "enough", (tmp_path / "tracking").as_uri()
    shell.environ |= {"MLFLOW_ALLOW_FILE_STORE": "true", "ENOUGH": str(enough)}
    shell.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    assert shell.refused("export", "mlflow", "job", "--to", url)["cause"] == Cause.NO_SUCH_RUN
    shell.write("train.py", SCRIPT)
    shell.job("python train.py ${matrix.lr}", matrix={"lr": [1, 2, 3]}, env={"ENOUGH": str(enough)})
    shell.stoker("run", "-d")
    shell.wait_for(lambda: "loss" in shell.facts("job-3")["metrics"], "the last trial reports")
    assert shell.ended("job-1")["state"] == "succeeded" and shell.ended("job-2")["state"] == "failed"
    assert shell.refused("export", "mlflow", "job", "--to", url)["cause"] == Cause.PACKAGE_MISSING
    shell.environ["PYTHONPATH"] = MLFLOW

    assert exported(shell, url) == (3, 0, 0)
    runs = read(shell, url)
    assert set(runs) == {"job-s1", "job-1", "job-2", "job-3"}
    one = runs["job-1"]
    assert (one["status"], one["params"], one["metrics"]["hr_10"]) == ("FINISHED", {"lr": "1"}, 2)
    assert one["loss"] == [[0, 1], [1, 0.5], [2, pytest.approx(1 / 3)], [3, 0]]
    assert one["files"] == ["model.txt"] and one["tags"]["mlflow.parentRunId"] == runs["job-s1"]["id"]
    assert (runs["job-2"]["status"], runs["job-3"]["status"]) == ("FAILED", "RUNNING")
    assert len(runs["job-3"]["loss"]) == 3 and runs["job-3"]["files"] == []

    enough.touch()
    assert shell.ended("job-3")["state"] == "succeeded"
    assert exported(shell, url) == (0, 1, 2)
    last = read(shell, url)["job-3"]
    assert (last["status"], len(last["loss"]), last["files"]) == ("FINISHED", 4, ["model.txt"])
    assert exported(shell, url) == (0, 0, 3) and len(read(shell, url)) == 4
    assert shell.refused("export", "mlflow", "job", "--to", "nope://x")["code"] == "bad-input"
