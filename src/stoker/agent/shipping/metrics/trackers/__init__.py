"""Metrics in what experiment trackers write on a node: MLflow's stores, W&B's offline runs. No tracker is imported.

They write below the outputs, where they do by default, and where the job's `env` says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from urllib.parse import unquote

from stoker.agent.shipping.metrics.trackers import mlflowfiles, wandbfiles
from stoker.agent.shipping.metrics.trackers.tracked import TrackedPoints

MLFLOW, WANDB = "MLflow", "W&B"  # names of sources


def tracker_points(
    work: Path, outputs: Path, rank: int, env: Mapping[str, str], others: Iterable[Path] = ()
) -> list[TrackedPoints]:
    """`others` are the folders of checkpoints, `env` the variables of the job."""
    kept = [outputs, *others]
    databases = list(_databases(work, env))
    stores = [work / "mlruns", *_stores(work, env)]
    runs = [work / "wandb", *(work / env[name] for name in ("WANDB_DIR",) if env.get(name))]
    return [
        TrackedPoints(MLFLOW, [*kept, *stores, *databases], partial(mlflowfiles.opened, databases), rank),
        TrackedPoints(WANDB, [*kept, *runs], wandbfiles.opened, rank),
    ]


_SQLITE = "sqlite:///"


def _databases(work: Path, env: Mapping[str, str]) -> Iterator[Path]:
    """The second is the default of MLflow 3."""
    uri = env.get("MLFLOW_TRACKING_URI", "")
    if uri.startswith(_SQLITE):
        yield work / uri.removeprefix(_SQLITE).partition("?")[0]
    yield from (work / name for name in mlflowfiles.DATABASES)


def _stores(work: Path, env: Mapping[str, str]) -> Iterator[Path]:
    uri = env.get("MLFLOW_TRACKING_URI", "")
    if uri.startswith("file:"):
        path = unquote(uri.removeprefix("file:"))
        yield work / (path.removeprefix("//") if path.startswith("///") else path)
    elif uri and ":" not in uri:
        yield work / uri
