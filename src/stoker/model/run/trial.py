"""A trial: what a run is of its sweep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Trial:
    sweep: str  # the sweep's id
    number: int  # in the sweep, from 1; a retry has the number of the failed one
    values: Mapping[str, str] = field(default_factory=dict)
    rung: int = 0  # of a search: the one that it heads for, or is paused at
    scores: tuple[float | None, ...] = ()  # its metric at each rung that it has reached; None: not a number

    @property
    def paused(self) -> bool:
        """At its rung, until the search decides."""
        return len(self.scores) > self.rung
