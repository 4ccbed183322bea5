"""What a training process finds around it: where checkpoints go, who warns it, and which rank it is.

The one file of this package that reads the environment. It is imported by scripts that only log, so it stays light.
"""

from __future__ import annotations

import os
from typing import NamedTuple


class Surroundings(NamedTuple):
    """`notice` and `finished` are None outside of Stoker; `evictions_per_hour` is None where nobody has counted."""

    folder: str
    notice: str | None = None
    finished: str | None = None
    reports_metrics: bool = False
    evictions_per_hour: float | None = None
    rank: int = 0
    world: int = 1
    local_rank: int = 0
    local_world: int = 0  # 0 where nobody has said


def look() -> Surroundings:
    env = os.environ
    return Surroundings(
        folder=env.get("STOKER_CHECKPOINTS") or "checkpoints",
        notice=env.get("STOKER_NOTICE") or None,
        finished=env.get("STOKER_FINISHED") or None,
        reports_metrics=metrics_file() is not None,
        evictions_per_hour=float(rate) if (rate := env.get("STOKER_EVICTIONS_PER_HOUR")) else None,
        rank=int(env.get("RANK") or 0),
        world=int(env.get("WORLD_SIZE") or 1),
        local_rank=int(env.get("LOCAL_RANK") or 0),
        local_world=int(env.get("LOCAL_WORLD_SIZE") or 0),
    )


def metrics_file() -> str | None:
    """Where metrics are reported; None outside of a run."""
    return os.environ.get("STOKER_METRICS") or None


def stop_file() -> str | None:
    """A file that appears once the run may stop; None outside of a run."""
    return os.environ.get("STOKER_STOP") or None


def toll_file() -> str | None:
    """Where this rank says how long it has waited for its saves; None outside of a run."""
    prefix = os.environ.get("STOKER_TOLL")
    return f"{prefix}.{rank()}" if prefix else None


def rank() -> int:
    """As torchrun and plain ranks are told theirs, or as MPI tells it."""
    known = (os.environ.get(name) for name in ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK"))
    return int(next((one for one in known if one), "0"))
