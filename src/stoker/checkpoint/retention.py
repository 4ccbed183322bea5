"""Which checkpoints to keep. Pure: the shelf removes what is not named here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Kept:
    """One checkpoint that is there, as far as retention cares."""

    name: str
    metrics: Mapping[str, float] = field(default_factory=dict)


def to_keep(there: Sequence[Kept], keep: int, best: str | None = None) -> set[str]:
    """The newest `keep`, and the best by a metric. `there` is in the order of saving.

    `best` names the metric; with a leading minus less is better. Of equals the earliest is the best.
    """
    if keep < 1:
        raise ValueError(f"keep={keep}: at least one checkpoint has to be kept")
    names = {one.name for one in there[-keep:]}
    if best:
        judged = [one for one in there if not math.isnan(score(one.metrics, best))]
        if judged:
            names.add(max(judged, key=lambda one: score(one.metrics, best)).name)
    return names


def score(metrics: Mapping[str, float], best: str) -> float:
    """More is better; not a number where the metric is not known."""
    value = metrics.get(best.lstrip("-"), math.nan)
    return -value if best.startswith("-") else value
