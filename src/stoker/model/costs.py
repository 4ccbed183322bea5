"""What runs have cost together, by what people ask for: whose, when, where."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import StrEnum


class By(StrEnum):
    EXPERIMENT = "experiment"
    PERSON = "person"
    DAY = "day"
    CLUSTER = "cluster"  # or the provider, where a run named one
    RUN = "run"


@dataclass(frozen=True, slots=True)
class CostRow:
    """`name` is empty where nobody has said, as of the person behind a run."""

    name: str
    runs: int
    seconds: Decimal  # of nodes that cost something, each for itself
    usd: Decimal
    usd_per_hour: Decimal = Decimal(0)  # what it costs now


@dataclass(frozen=True, slots=True)
class Costs:
    """The rows sum to `total`, but for its runs: one may be in several days."""

    by: By
    since: datetime | None  # None: from the beginning
    as_of: datetime
    rows: tuple[CostRow, ...]
    total: CostRow
