"""What goes wrong by itself: drawn from a seed, so that the same seed brings the same trouble at the same moments."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Weather:
    """How rough it is. Shares are between 0 and 1. All seconds are the twin's own."""

    seed: int = 0
    evictions_per_hour: float = 0.0  # of one spot machine, on average
    notices_s: tuple[float, ...] = (30.0, 30.0, 8.0, 0.0)  # one of these is drawn
    withdrawn: float = 0.0  # of the notices
    allocation_failures: float = 0.0  # of the attempts to have a machine
    throttled: float = 0.0  # of the requests
    slow: float = 0.0  # of the requests
    slow_s: float = 3.0
    lost: float = 0.0  # of the answers, after the work was done
    failed: float = 0.0  # of the requests, with an internal error before anything was done
    price_swing: float = 0.2  # how far spot prices move to either side
    roles_spread_s: float = 0.0  # how long a new role or principal is unknown; minutes in Azure
    stretch: float = 1.0  # how many times as long operations take
    first_events_s: float = 0.0  # how long the first answer of Scheduled Events takes; two minutes in Azure
    errors_as_text: bool = False  # what a deployment failed for is told as a text of JSON, as Azure does at times
    restore_s: float = 60.0  # between tries to restore an evicted instance of a scale set; Azure does not say

    def next_eviction_s(self, machine: str, now: float) -> float:
        """How long a spot machine that starts now is left alone."""
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
        """What befalls request `number`: `throttle`, `slow`, `lose`, `error` or nothing."""
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
    # Nothing is evicted, and everything that Azure may refuse, delay or forget for a while, it does.
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
    """A number from 0 up to 1 that depends on the key alone."""
    digest = hashlib.sha256(repr(key).encode()).digest()
    return int.from_bytes(digest[:7], "big") / 2**56


def pick(choices: tuple[float, ...], *key: object) -> float:
    return choices[int(draw(*key) * len(choices))]


@dataclass(frozen=True, slots=True)
class Fault:
    """Trouble ordered by hand. It befalls the next `times` requests that fit.

    `kind` is `throttle`, `slow`, `lose`, `allocation`, `error` or `refuse`; an error answers with `status`, `code`,
    `message`, and a refusal does the same to a part of a deployment.
    """

    kind: str
    method: str = ""  # empty: any
    path: str = ""  # a part of the path, in any case
    times: int = 1
    seconds: float = 3.0  # of a slow answer, or until the next attempt
    status: int = 500
    code: str = "InternalServerError"
    message: str = "Encountered internal server error."

    def fits(self, method: str, path: str) -> bool:
        return self.method.upper() in ("", method) and self.path.lower() in path.lower()


def take(
    faults: tuple[Fault, ...], kinds: tuple[str, ...], method: str, path: str
) -> tuple[Fault | None, tuple[Fault, ...]]:
    """The first ordered fault that fits, and those that are left then."""
    for index, fault in enumerate(faults):
        if fault.kind in kinds and fault.fits(method, path):
            rest = (replace(fault, times=fault.times - 1),) if fault.times > 1 else ()
            return fault, faults[:index] + rest + faults[index + 1 :]
    return None, faults
