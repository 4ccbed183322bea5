"""What a job is expected to take and to cost, before anything is started."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal

from stoker.model.node.node import Offer


@dataclass(frozen=True, slots=True)
class Past:
    """What earlier runs of the experiment tell. None, and no entry, where they tell nothing."""

    runs: int = 0  # that succeeded, and whose work was measured
    work_s: Mapping[str, float] = field(default_factory=dict)  # by size: the work of a whole run, each piece once
    start_s: float | None = None  # from asking for a node to the script's start
    lost_s: float | None = None  # work done twice, for each node that was taken away
    evictions: int = 0
    said_h: float | None = None  # hours of work, as somebody says, whatever earlier runs took
    spot_s: float = 0.0  # that nodes were there in all, and could be taken away

    @property
    def evictions_per_hour(self) -> float | None:
        return self.evictions * 3600 / self.spot_s if self.spot_s else None


@dataclass(frozen=True, slots=True)
class Expectation:
    """One offer, and what to expect of it. None where that is not known."""

    offer: Offer
    discount: float | None = None  # of a spot offer: the part of the price on demand that it saves
    seconds: float | None = None
    usd: Decimal | None = None
    evictions: float | None = None
    lasts_s: float | None = None  # how long the budget pays for it; None: there is no budget
    problem: str = ""  # why it will not do, in words


@dataclass(frozen=True, slots=True)
class Forecast:
    past: Past
    offers: tuple[Expectation, ...]  # the cheapest way first; those that will not do last
    choice: Expectation | None = None  # None: nothing meets what the job asks for
    why: str = ""  # the reason for the choice, or for there being none
