"""Which runs are no longer wanted: a rule that a person gives, and what follows from it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PruneRule:
    """Ended runs that ended longer ago than this go. The newest run of each experiment always stays."""

    older_than_s: float
    keep_best: bool = False  # also the best of each experiment, by the metric that its job names
    experiment: str = ""  # only runs of this job; empty: of all


@dataclass(frozen=True, slots=True)
class Spared:
    """A run that is old enough to go, and why it stays."""

    name: str
    why: str
