"""Metrics of an unchanged script: found in what it prints, listed, tried, and missed."""

from __future__ import annotations

import json
from pathlib import Path

from shell import Shell

from stoker.model.cause import Cause

TRACKED = Path(__file__).parents[1] / "unit" / "agent" / "shipping" / "tracked"  # written by the trackers themselves

SCRIPT = """
import time
print("Epoch 1/2", flush=True)
for n in range(1, 11):
    print(f"\\r{n}/10 [{'=' * 10}] - 1s 5ms/step - loss: {n / 10}", end="", flush=True)
print("\\r10/10 [==========] - 1s 5ms/step - loss: 0.25 - val_accuracy: 0.5")
print("kappa is 0.125 now (update 7)")
print("loaded /data/model_loss=9.5.pt")
"""


def test_metrics_of_an_unchanged_script_are_found_listed_and_missed(shell: Shell) -> None:
    shell.write("train.py", SCRIPT)
    pattern = r"kappa is ([\d.]+) now \(update (?P<step>\d+)\)"
    shell.write(
        "stoker.yaml",
        f"name: bars\nrun: python train.py\nstop_when: val_acc >= 0.9\nmetrics:\n  kappa: '{pattern}'\n",
    )
    ended = shell.stoker("run")
    assert shell.facts("last")["cause"] == Cause.METRIC_MISSING and "`val_accuracy`" in ended.stderr
    told = "metrics found in Keras's progress bars: loss, val_accuracy"
    assert ended.stderr.count(told) == 1
    assert shell.stoker("logs").stderr.count(told) == 1
    listed = json.loads(shell.stoker("metrics", "--json").stdout)
    assert {name: (one["last"], one["step"]) for name, one in listed["metrics"].items()} == {
        "kappa": (0.125, 7),
        "loss": (0.25, 1),
        "val_accuracy": (0.5, 1),
    }
    assert "Keras's progress bars" in listed["found"][0]
    shown = shell.stoker("metrics")
    assert "val_accuracy" in shown.stdout
    assert "Keras's progress bars" in shown.stderr
    assert "0.125" in shell.stoker("metrics", "bars", "--try", pattern).stdout
    bad = shell.stoker("metrics", "bars", "--try", "loss (", code=2)
    assert "missing )" in bad.stderr
    assert "no match" in shell.stoker("metrics", "bars", "--try", "recall ([0-9.]+)").stdout


def test_files_with_metrics_are_named_in_the_log(shell: Shell) -> None:
    table = "epoch,train_loss\\n0,0.5\\n1,0.25\\n"
    shell.write("train.py", f"open('outputs/metrics.csv', 'w').write('{table}')\n")
    shell.write("stoker.yaml", "name: table\nrun: python train.py\n")
    told = "metrics found in CSV or JSON files: train_loss"
    assert shell.stoker("run").stderr.count(told) == 1
    logs = shell.stoker("logs")
    assert (logs.stdout, logs.stderr.count(told)) == ("", 1)


def test_what_mlflow_and_wandb_write_are_metrics_of_the_run(shell: Shell) -> None:
    shell.write("metrics.sql", (TRACKED / "metrics.sql").read_text())
    (shell.folder / "run-a1.wandb").write_bytes((TRACKED / "offline.wandb").read_bytes())
    lines = [
        "import os, shutil, sqlite3",
        "sqlite3.connect('mlflow.db').executescript(open('metrics.sql').read())",
        "os.makedirs('wandb/offline-run-1-a1')",
        "shutil.copy('run-a1.wandb', 'wandb/offline-run-1-a1')",
    ]
    shell.write("train.py", "\n".join(lines))
    shell.write("stoker.yaml", "name: tracked\nrun: python train.py\n")
    told = shell.stoker("run").stderr
    assert "MLflow's store" in told and "W&B's offline run" in told
    metrics = json.loads(shell.stoker("metrics", "--json").stdout)["metrics"]
    assert (metrics["odd name"]["last"], metrics["odd name"]["count"]) == (-1.5, 2)
    assert (metrics["nested.a"]["last"], metrics["nested.a"]["step"]) == (2.0, 2)
    assert metrics["loss"]["count"] == 10


def test_a_bad_pattern_is_reported_where_it_stands(shell: Shell) -> None:
    shell.write("stoker.yaml", "name: bars\nrun: python train.py\nmetrics:\n  loss: 'loss ('\n")
    refused = shell.stoker("plan", code=2)
    assert "stoker.yaml:4" in refused.stderr
    assert "metrics.loss" in refused.stderr
