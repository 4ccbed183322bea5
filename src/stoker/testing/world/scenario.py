"""The contents of a world, its faults, and its virtual time: plain data, drawn beforehand."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import StrEnum

from stoker.model.job.job import Job
from stoker.model.node import Cluster

START = datetime(2026, 1, 1, tzinfo=UTC)

Happening = Callable[[], None]


class Timeline:
    def __init__(self) -> None:
        self.now = 0.0  # seconds
        self._coming: list[tuple[float, int, Happening]] = []
        self._count = 0  # of two events at the same moment, the one planned first comes first

    def at(self, when: float, happening: Happening) -> None:
        self._count += 1
        heapq.heappush(self._coming, (max(when, self.now), self._count, happening))

    def after(self, seconds: float, happening: Happening) -> None:
        self.at(self.now + seconds, happening)

    def step(self) -> bool:
        """Executes the next event. False when there is none."""
        if not self._coming:
            return False
        self.now, _, happening = heapq.heappop(self._coming)
        happening()
        return True


def moment(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


class MishapKind(StrEnum):
    """`Mishap.seconds` is the duration, unless stated otherwise."""

    EVICTION = "eviction"  # seconds: the notice; 0: none
    FALSE_ALARM = "false-alarm"  # a notice that is withdrawn after so many seconds
    DEATH = "death"  # the agent dies, and its machine with it
    HANG = "hang"  # the agent does nothing and reports nothing, and then continues as if nothing had happened
    CUT_OFF = "cut-off"  # the node reaches neither store nor server; it keeps working
    SLOWNESS = "slowness"  # from then on it works at a third of its speed
    UNSEEN = "unseen"  # the provider's list omits the node
    FULL_STORE = "full-store"  # nothing of the run can be written
    START_REFUSED = "start-refused"  # the next request for a node fails
    START_THROTTLED = "start-throttled"  # the same, with a temporary error
    START_TOO_DEAR = "start-too-dear"  # the same, because the spot price is above the run's maximum
    START_UNTOLD = "start-untold"  # the node is created, but the response reports a failure
    STOP_REFUSED = "stop-refused"  # requests to release a node fail
    STOP_UNTOLD = "stop-untold"  # the next one succeeds, but the response reports a failure
    BLIND = "blind"  # the provider does not answer
    LOGGED_OUT = "logged-out"  # the login has expired: the provider refuses everything
    STORE_HANGS = "store-hangs"  # nobody can read or write anything of any run
    KEY_ROTATED = "key-rotated"  # the server can no longer use the store; nodes can
    LOSSES = "losses"  # the node of a run dies, and so do the next ones, so many seconds after each other
    NO_CAPACITY = "no-capacity"  # of one place
    DEAR = "dear"  # the price of one place triples
    CRASH = "crash"  # of the server, at `where` in its next round; seconds: until it is back
    CLOCK = "clock"  # the same, and the computer's clock is wrong by that much afterwards, either way
    CANCEL = "cancel"  # a user cancels the run
    DRILL = "drill"  # a user simulates an eviction
    CLUSTER_PAUSED = "cluster-paused"  # a user pauses a cluster, and resumes it after so many seconds


@dataclass(frozen=True, slots=True)
class Mishap:
    at: float
    fault: MishapKind
    run: int = 0  # the affected run, by its index in the scenario; or the place
    seconds: float = 0.0
    where: int = 0  # how many more steps of a round the server executes before it dies; or which node of a gang

    def __str__(self) -> str:
        return f"{self.at:7.0f} s  {self.fault} of {self.run} for {self.seconds:.0f} s" + f", step {self.where}"


@dataclass(frozen=True, slots=True)
class RunPlan:
    """One run as it would be without faults."""

    job: Job
    at: float = 0.0  # when it is submitted
    work_s: float = 600.0
    save_every_s: float = 120.0
    save_s: float = 2.0  # duration of a checkpoint
    listens: bool = True  # it saves and exits on a notice
    failures: int = 0  # attempts that end with the script's own failure
    reports: bool = True  # it reports its progress
    skew_s: float = 0.0  # how wrong the clocks of its nodes are
    shards: bool = False  # every node of a gang saves its part; else the first one saves for all
    peers_fail: bool = True  # ranks fail when they lose a peer; else they wait until they are ended
    cluster: str = ""  # the name of the one that it is submitted to; empty: to the provider
    person: str = ""


@dataclass(frozen=True, slots=True)
class MarketPlace:
    """A source of machines. `open` are the spans in which spot machines are available; None: always."""

    name: str
    usd_per_hour: Decimal
    spot: bool
    prices: tuple[tuple[float, Decimal], ...] = ()  # the price from then on
    open: tuple[tuple[float, float], ...] | None = None
    capacity: int | None = None  # machines that it has at once; None: any number
    tells: bool = False  # it tells that number


@dataclass(frozen=True, slots=True)
class Scenario:
    seed: int
    plans: tuple[RunPlan, ...]
    mishaps: tuple[Mishap, ...] = ()
    places: tuple[MarketPlace, ...] = ()
    slots: int = 2  # where there are no places: nodes at once
    boot_s: tuple[float, ...] = (20.0,)  # in turn
    release_s: float = 5.0  # until a released machine is no longer billed
    lease_s: float = 432_000.0  # the longest of a node; 0: no leases
    idle_s: float = 600.0  # of a node without a run
    restore_s: float = 0.0  # until the provider restores an evicted spot machine; 0: never
    clusters: tuple[Cluster, ...] = ()
    notice_s: float = 0.0  # before a place closes, for the machines there
    notes: str = field(default="", compare=False)

    @property
    def size(self) -> int:
        return len(self.plans) + len(self.mishaps)
