"""Writes the files beside it with the trackers themselves, MLflow 3.17.2 and wandb 0.29.0, in a Python that has both.

`python make.py`, in an empty folder. `metrics.sql` is the table of MLflow's database, `offline.wandb` a run of W&B.
"""

import os
import sqlite3
from pathlib import Path

os.environ |= {"WANDB_MODE": "offline", "MLFLOW_DISABLE_TELEMETRY": "1", "WANDB_HOST": "node", "WANDB_USERNAME": "ada"}

import mlflow
import wandb

HERE = Path(__file__).parent


def with_mlflow() -> None:
    with mlflow.start_run(run_name="first"):
        for step in range(4):
            odd = {2: float("nan"), 3: float("inf")}.get(step, -1.5)
            mlflow.log_metrics({"loss": 1 / (step + 1), "val/acc": step / 4, "odd name": odd}, step=step)
    with mlflow.start_run(run_name="second"):
        mlflow.log_metric("loss", 9.0)
    tables = sqlite3.connect("mlflow.db")
    lines = [line for line in tables.iterdump() if '"metrics"' in line.partition("(")[0]]
    (HERE / "metrics.sql").write_text("\n".join(lines) + "\n")


def with_wandb() -> None:
    quiet = wandb.Settings(
        x_disable_meta=True, x_disable_stats=True, x_save_requirements=False, console="off", disable_git=True,
        save_code=False, disable_code=True, program="train.py", host="node", username="ada", email="",
    )  # fmt: skip
    run = wandb.init(project="ants", config={"lr": 0.1}, settings=quiet)
    for step in range(3):
        odd = {1: float("nan"), 2: float("inf")}.get(step, -1.5)
        wandb.log({"loss": 1 / (step + 1), "val/acc": step / 4, "odd": odd, "nested": {"a": step}, "note": "x"})
    wandb.log({"weights": wandb.Histogram([1, 2, 3]), "text": "x" * 70_000, "loss": 0.125})  # over three blocks
    wandb.log({"loss": 0.1}, step=100)
    run.finish()
    wandb.teardown()  # which waits for the last block
    (written,) = Path("wandb").glob("offline-run-*/run-*.wandb")
    (HERE / "offline.wandb").write_bytes(written.read_bytes())


with_mlflow()
with_wandb()
