"""The twin's time, and random faults in it: drawn from a seed, so that the same seed causes the same faults."""

from __future__ import annotations

import hashlib
import math
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime


class TwinClock:
    """`now` counts the twin's seconds; `wall` converts one to wall-clock time."""

    def __init__(self, start: float = 0.0, speed: float = 1.0) -> None:
        self._anchor = (start, time.time(), time.monotonic())
        self._speed = speed

    @property
    def speed(self) -> float:
        return self._speed

    def now(self) -> float:
        start, _, since = self._anchor
        return start + (time.monotonic() - since) * self._speed

    def set_speed(self, speed: float) -> None:
        self._anchor = (self.now(), time.time(), time.monotonic())
        self._speed = speed

    def real_s(self, twin_s: float) -> float:
        return twin_s / self._speed

    def wall(self, moment: float) -> datetime:
        start, unix, _ = self._anchor
        return datetime.fromtimestamp(unix + (moment - start) / self._speed, UTC)


@dataclass(frozen=True, slots=True)
class Weather:
    """How many faults there are. Shares are between 0 and 1. All seconds are the twin's own."""

    seed: int = 0
    evictions_per_hour: float = 0.0  # of one spot machine, on average
    notices_s: tuple[float, ...] = (30.0, 30.0, 8.0, 0.0)  # one of these is drawn
    withdrawn: float = 0.0  # of the notices
    allocation_failures: float = 0.0  # of the allocations
    throttled: float = 0.0  # of the requests
    slow: float = 0.0  # of the requests
    slow_s: float = 3.0
    lost: float = 0.0  # of the responses, after the work was done
    failed: float = 0.0  # of the requests, with an internal error before anything was done
    price_swing: float = 0.2  # how far spot prices move to either side
    roles_spread_s: float = 0.0  # how long a new role or principal is unknown; minutes in Azure
    stretch: float = 1.0  # factor on the duration of operations
    first_events_s: float = 0.0  # duration of the first response of Scheduled Events; two minutes in Azure
    errors_as_text: bool = False  # errors of deployments are given as JSON text, as Azure does at times
    restore_s: float = 60.0  # between tries to restore an evicted instance of a scale set; Azure does not document it

    def next_eviction_s(self, machine: str, now: float) -> float:
        """How long a spot machine that starts now is not evicted."""
        if self.evictions_per_hour <= 0:
            return math.inf
        return -math.log(1 - draw(self.seed, "eviction", machine, now)) * 3600 / self.evictions_per_hour

    def notice_s(self, machine: str, now: float) -> float:
        return pick(self.notices_s or (30.0,), self.seed, "notice", machine, now)

    def is_withdrawn(self, machine: str, now: float) -> bool:
        return draw(self.seed, "withdrawn", machine, now) < self.withdrawn

    def allocation_fails(self, number: int) -> bool:
        return draw(self.seed, "allocation", number) < self.allocation_failures

    def trouble(self, number: int) -> str:
        """The fault of request `number`: `throttle`, `slow`, `lose`, `error` or none."""
        drawn = draw(self.seed, "request", number)
        troubles = {"throttle": self.throttled, "slow": self.slow, "lose": self.lost, "error": self.failed}
        for word, share in troubles.items():
            if drawn < share:
                return word
            drawn -= share
        return ""


FORECASTS = {
    "calm": Weather(),
    "changeable": Weather(
        evictions_per_hour=2, withdrawn=0.1, allocation_failures=0.05, throttled=0.01, slow=0.02, lost=0.002
    ),
    "storm": Weather(
        evictions_per_hour=30,
        withdrawn=0.2,
        allocation_failures=0.3,
        throttled=0.05,
        slow=0.05,
        lost=0.02,
        first_events_s=120,
    ),
    # Nothing is evicted, but everything that Azure may refuse, delay or lose, it does.
    "hostile": Weather(
        allocation_failures=0.25,
        throttled=0.04,
        slow=0.04,
        slow_s=2,
        lost=0.02,
        failed=0.03,
        price_swing=0.6,
        roles_spread_s=5,
        stretch=4,
        first_events_s=5,
        errors_as_text=True,
    ),
}


def forecast(name: str, seed: int) -> Weather:
    return replace(FORECASTS[name], seed=seed)


def draw(*key: object) -> float:
    """A number from 0 up to 1 that depends only on the key."""
    digest = hashlib.sha256(repr(key).encode()).digest()
    return int.from_bytes(digest[:7], "big") / 2**56


def pick(choices: tuple[float, ...], *key: object) -> float:
    return choices[int(draw(*key) * len(choices))]


ANSWERS = ("throttle", "slow", "lose", "error", "botch", "omit", "stall")  # to any request
KINDS = (*ANSWERS, "allocation", "refuse")


@dataclass(frozen=True, slots=True)
class OrderedFault:
    """A fault ordered by a test. It affects the next `times` matching requests.

    `kind` is one of `KINDS`. An error responds with `status`, `code`, `message`; a botched request does, too, after it
    was executed, and so does a part of a deployment that is refused. A stalled one takes `seconds` longer to complete,
    and an omission is an empty list.
    """

    kind: str
    method: str = ""  # empty: any
    path: str = ""  # a part of the path, in any case
    times: int = 1
    seconds: float = 3.0  # of a slow response, or until the next try
    status: int = 500
    code: str = "InternalServerError"
    message: str = "Encountered internal server error."

    def fits(self, method: str, path: str) -> bool:
        return self.method.upper() in ("", method) and self.path.lower() in path.lower()


def take(
    faults: tuple[OrderedFault, ...], kinds: tuple[str, ...], method: str, path: str
) -> tuple[OrderedFault | None, tuple[OrderedFault, ...]]:
    """The first matching fault, and the remaining ones."""
    for index, fault in enumerate(faults):
        if fault.kind in kinds and fault.fits(method, path):
            rest = (replace(fault, times=fault.times - 1),) if fault.times > 1 else ()
            return fault, faults[:index] + rest + faults[index + 1 :]
    return None, faults
