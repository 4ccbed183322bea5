"""Where the dollars and the seconds of a run went, in parts that sum to the whole; and what a job is expected to
take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import ROUND_DOWN, Decimal
from enum import StrEnum

from stoker.model.node import Offer


class Part(StrEnum):
    """What a moment of a node went into. In the order in which people read them."""

    USEFUL = "useful"  # the script's work, each piece of it once
    PROVISIONING = "provisioning"  # from asking for the node to its agent's first word
    SETUP = "set-up"  # unpacking the code, building the environment
    DATA = "data"  # bringing the inputs, waiting for them, sending the outputs
    CHECKPOINT = "checkpoint"  # waiting for saves, putting one back
    REDONE = "redone"  # work that was lost with its node, and had to be done again
    IDLE = "idle"  # a node with nothing to do: being released, or requested and not needed


@dataclass(frozen=True, slots=True)
class Share:
    seconds: Decimal = Decimal(0)
    usd: Decimal = Decimal(0)

    def __add__(self, other: Share) -> Share:
        return Share(self.seconds + other.seconds, self.usd + other.usd)


@dataclass(frozen=True, slots=True)
class Stay:
    """One node of a run, from its request to when it was seen gone."""

    attempt: int
    since: datetime
    until: datetime | None  # None: it is still there
    parts: Mapping[str, Share]  # by `Part`
    size: str = ""
    place: str = ""
    spot: bool = False

    @property
    def whole(self) -> Share:
        return total(self.parts.values())


@dataclass(frozen=True, slots=True)
class Taken:
    """A node that a run lost, and what that cost it."""

    attempt: int
    at: datetime
    how: str  # evicted, lost, moved: an `AttemptState`
    notice_s: float | None  # None: it came without
    redone: Share
    step: float | None = None  # the last one that was done; None: the script has reported none
    safe_step: float | None = None  # from which the run resumed; None: unknown, or from nothing
    steps_lost: float | None = None  # None: unknown
    again: str = ""  # where the script began again below what it had reached, as it counts itself: `epoch 0`
    alone: bool = False  # while no server was running: `at` is when it was last heard, and its notice is unknown


@dataclass(frozen=True, slots=True)
class Receipt:
    run: str
    state: str
    as_of: datetime
    final: bool  # the run has ended, and every node of it was seen gone
    parts: Mapping[str, Share]  # by `Part`: all of them, in order
    stays: tuple[Stay, ...] = ()
    taken: tuple[Taken, ...] = ()
    usd_per_hour: Decimal = Decimal(0)  # what it costs now
    undisturbed_usd: Decimal | None = None  # on demand, with one start and no evictions; None: the price is not known
    budget: Decimal | None = None
    left: tuple[str, ...] | None = None  # resources of it that are there now; None: nobody has looked
    priced_at: datetime | None = None  # how old the prices are that the comparison was made with
    notes: tuple[str, ...] = field(default_factory=tuple)  # what could not be measured, in words

    @property
    def whole(self) -> Share:
        return total(self.parts.values())

    @property
    def usd(self) -> Decimal:
        return self.whole.usd

    @property
    def seconds(self) -> Decimal:
        return self.whole.seconds

    @property
    def free(self) -> bool:
        """Its nodes cost nothing."""
        return not self.usd and not self.usd_per_hour


def total(shares: Iterable[Share]) -> Share:
    return sum(shares, Share())


def rounded(values: Iterable[Decimal], quantum: Decimal) -> list[Decimal]:
    """Each to the quantum, so that they sum to their sum so rounded: what is left over goes to those that lost most."""
    exact = list(values)
    down = [value.quantize(quantum, rounding=ROUND_DOWN) for value in exact]
    missing = int((sum(exact, Decimal(0)).quantize(quantum) - sum(down, Decimal(0))) / quantum)
    by_loss = sorted(range(len(exact)), key=lambda at: exact[at] - down[at], reverse=True)
    lucky = set(by_loss[:missing])
    return [value + quantum if at in lucky else value for at, value in enumerate(down)]


@dataclass(frozen=True, slots=True)
class Past:
    """What earlier runs of the experiment tell. None, and no entry, where they tell nothing."""

    runs: int = 0  # that succeeded, and whose work was measured
    work_s: Mapping[str, float] = field(default_factory=dict)  # by size: the work of a whole run, each piece once
    start_s: float | None = None  # from asking for a node to the script's start
    lost_s: float | None = None  # work done twice, for each eviction
    evictions: int = 0
    said_h: float | None = None  # hours of work, as somebody says, whatever earlier runs took
    spot_s: float = 0.0  # time on spot nodes, in total

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
