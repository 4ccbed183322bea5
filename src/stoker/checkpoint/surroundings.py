"""What a training process finds around it: where checkpoints go, who warns it, and which rank it is."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Surroundings:
    """`notice` is None outside of Stoker; `evictions_per_hour` is None where nobody has counted."""

    folder: Path
    notice: Path | None = None
    reports_metrics: bool = False
    evictions_per_hour: float | None = None
    rank: int = 0
    world: int = 1
    local_rank: int = 0
    local_world: int = 1


def look() -> Surroundings:
    return Surroundings(
        folder=Path(os.getenv("STOKER_CHECKPOINTS") or "checkpoints"),
        notice=Path(notice) if (notice := os.getenv("STOKER_NOTICE")) else None,
        reports_metrics=bool(os.getenv("STOKER_METRICS")),
        evictions_per_hour=float(rate) if (rate := os.getenv("STOKER_EVICTIONS_PER_HOUR")) else None,
        rank=int(os.getenv("RANK") or 0),
        world=int(os.getenv("WORLD_SIZE") or 1),
        local_rank=int(os.getenv("LOCAL_RANK") or 0),
        local_world=int(os.getenv("LOCAL_WORLD_SIZE") or 1),
    )
