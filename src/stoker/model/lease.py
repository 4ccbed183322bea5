"""The right of a node to stay. The server renews it; a node whose lease is over saves and removes itself."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

LAST_WORDS_S = 120.0  # to save and upload, once the lease is over


@dataclass(frozen=True, slots=True)
class Lease:
    """Lasts `seconds` from the moment the node first sees this `number`: no two clocks have to agree."""

    number: int
    seconds: float
    given_at: datetime | None = None  # by the server's clock, for a machine that begins when it has long been given
