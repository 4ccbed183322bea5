"""How often a store is read and written: often on a disk, less often where each request is billed.

Standard library only: agents carry this file.
"""

from __future__ import annotations

from dataclasses import dataclass

from stoker.stores import Store


@dataclass(frozen=True, slots=True)
class Pacing:
    """Seconds. `eager_s` is the interval of looks at something that has just changed, `lazy_s` at something quiet."""

    eager_s: float
    lazy_s: float
    wishes_s: float  # between an agent's looks for the server's wishes
    write_s: float  # between two writes of something that grows all the time, such as a log
    beat_s: float  # between two heartbeats of an agent
    fence_s: float  # between an agent's checks whether it has been replaced


NEAR = Pacing(eager_s=0.01, lazy_s=0.1, wishes_s=0.1, write_s=0.0, beat_s=2.0, fence_s=10.0)
FAR = Pacing(eager_s=0.25, lazy_s=2.0, wishes_s=2.0, write_s=1.0, beat_s=10.0, fence_s=60.0)


def pacing(store: Store) -> Pacing:
    return NEAR if store.near else FAR
