"""Money as facts: what each node of a run costs and for how long, and what an agent is told so that it stops in time.

All sums are dollars of the United States: prices are requested in them, and nothing here converts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from decimal import ROUND_UP, Decimal
from enum import StrEnum

SAVE_S = 3.0  # the least that a script is given to save, before its run has cost what it may
FINISH_S = 2.0  # the least that is held back to end it, and to upload what is left
UNLIMITED = Decimal(10**9)  # more than anybody can set
_NANO = Decimal("0.000000001")


@dataclass(frozen=True, slots=True)
class Spell:
    """One node at one price for a time. Only `engine/money/meter.py` makes these."""

    key: str  # of the node
    since: datetime  # no later than the cloud begins to count
    until: datetime | None  # no sooner than it ends; None: it still costs
    usd_per_hour: Decimal
    seen_at: datetime | None = None  # when it was last seen at this price, to the minute; None: never yet


@dataclass(frozen=True, slots=True)
class IdleSpell(Spell):
    """A node that waits for the next run of its cluster, whose owner pays for it."""

    released: str = ""  # why it does not wait any more, though it may still cost; empty: it waits
    owner: str = ""  # of the cluster, when the wait began


@dataclass(frozen=True, slots=True)
class Fuse:
    """What a node may spend, told by the server. Another value is newer: the node reckons on from when it reads it.

    `spent_usd` and `usd_per_hour` are those of the whole run: all its nodes together, also one that is being released.
    """

    stop_at_usd: Decimal  # what may have been spent when the node asks to be released, with everything saved
    spent_usd: Decimal  # at `as_of`
    usd_per_hour: Decimal  # from then on
    as_of: datetime  # by the server's clock
    save_s: float = 0.0  # what earlier attempts took to save and upload; 0: none has yet
    why: str = ""  # whose limit it is, in words

    @property
    def seconds(self) -> float:
        """From `as_of` to the moment at which the node has to ask for its release; none, or fewer: it is there."""
        if self.usd_per_hour <= 0:
            return float("inf")
        return float((self.stop_at_usd - self.spent_usd) * 3600 / self.usd_per_hour)

    def at(self, now: datetime) -> Fuse:
        """The same, as of a later time: a node counts from when it reads it, not from when it was computed."""
        gone_s = Decimal(max((now - self.as_of).total_seconds(), 0.0))
        spent = self.spent_usd + (self.usd_per_hour * gone_s / 3600).quantize(_NANO, ROUND_UP)
        return replace(self, spent_usd=spent, as_of=now) if gone_s else self


@dataclass(frozen=True, slots=True)
class BudgetState:
    """How a run stands. `usd_per_hour` is what it costs now; `reserve_usd` is held back to stop it in good order."""

    budget_usd: Decimal | None
    spent_usd: Decimal
    usd_per_hour: Decimal
    reserve_usd: Decimal


class Period(StrEnum):
    """Of time, by UTC."""

    DAY = "day"
    MONTH = "month"


@dataclass(frozen=True, slots=True)
class Limit:
    """What may be spent in each day or month; set by an administrator."""

    period: Period
    usd: Decimal
    person: str = ""  # empty: everybody together


@dataclass(frozen=True, slots=True)
class LimitState:
    """A limit, and what is used of it in the current period."""

    limit: Limit
    used_usd: Decimal
    until: datetime  # when a new period begins


# What runs have cost together, by what people ask for: whose, when, where.


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
