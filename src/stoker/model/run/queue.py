"""The turn of a waiting run: what it waits for, and when it will likely start."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from stoker.model.job.job import Priority


@dataclass(frozen=True, slots=True)
class Turn:
    name: str
    on: str
    nodes: int
    priority: Priority
    person: str
    submitted_at: datetime
    waits_for: str  # in words
    starts_at: datetime | None = None  # when it will likely start; None: unknown
    unknown: str = ""  # why that is unknown; empty: it is not
