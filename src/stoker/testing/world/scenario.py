"""What a world is made of, and what will go wrong in it: plain data, drawn beforehand, so that it can be cut down."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum

from stoker.model.job.job import Job


class Fault(StrEnum):
    """`Mishap.seconds` is for how long, unless it says otherwise."""

    EVICTION = "eviction"  # seconds: the notice; 0: none is given
    FALSE_ALARM = "false-alarm"  # a notice that is withdrawn after so many seconds
    DEATH = "death"  # the agent dies, and its machine with it
    HANG = "hang"  # the agent says nothing, does nothing, and goes on afterwards as if nothing had been
    CUT_OFF = "cut-off"  # the node reaches neither store nor server; it works on
    SLOWNESS = "slowness"  # from then on it works at a third of its speed
    UNSEEN = "unseen"  # the provider's list leaves the node out
    FULL_STORE = "full-store"  # nothing of the run can be written
    START_REFUSED = "start-refused"  # the next request for a node fails
    START_THROTTLED = "start-throttled"  # the same, with an error that is the weather
    START_TOO_DEAR = "start-too-dear"  # the same, because spot costs more than the run may pay
    START_UNTOLD = "start-untold"  # the node is made, and the answer says that it failed
    STOP_REFUSED = "stop-refused"  # requests to release a node fail
    STOP_UNTOLD = "stop-untold"  # the next one is carried out, and the answer says that it failed
    BLIND = "blind"  # the provider does not answer
    LOGGED_OUT = "logged-out"  # the login has expired: the provider refuses everything
    STORE_HANGS = "store-hangs"  # nobody can read or write anything of any run
    KEY_ROTATED = "key-rotated"  # the server can use the store no more; nodes can
    LOSSES = "losses"  # the node of a run dies, and so do the next ones, so many seconds after each other
    NO_CAPACITY = "no-capacity"  # of one place
    DEAR = "dear"  # the price of one place triples
    CRASH = "crash"  # of the server, at `where` in its next round; seconds: until it is back
    CLOCK = "clock"  # the same, and the computer's clock is wrong by that much afterwards, either way
    CANCEL = "cancel"  # somebody does not want the run any more
    DRILL = "drill"  # somebody tries an eviction


@dataclass(frozen=True, slots=True)
class Mishap:
    at: float
    fault: Fault
    run: int = 0  # which run it befalls, by its place in the scenario; or which place
    seconds: float = 0.0
    where: int = 0  # how many steps of a round the server still takes before it dies

    def __str__(self) -> str:
        return f"{self.at:7.0f} s  {self.fault} of {self.run} for {self.seconds:.0f} s" + f", step {self.where}"


@dataclass(frozen=True, slots=True)
class Plan:
    """One run as it would go if nothing happened."""

    job: Job
    at: float = 0.0  # when it is submitted
    work_s: float = 600.0
    save_every_s: float = 120.0
    save_s: float = 2.0  # until a checkpoint is safe
    listens: bool = True  # it saves and ends when a notice tells it to
    failures: int = 0  # attempts that end with the script's own failure
    reports: bool = True  # it says how far it is
    skew_s: float = 0.0  # how wrong the clocks of its nodes are


@dataclass(frozen=True, slots=True)
class Place:
    """Where machines are had. `open` are the spans in which spot machines are there; None: always."""

    name: str
    usd_per_hour: Decimal
    spot: bool
    prices: tuple[tuple[float, Decimal], ...] = ()  # what it costs from then on
    open: tuple[tuple[float, float], ...] | None = None


@dataclass(frozen=True, slots=True)
class Scenario:
    seed: int
    plans: tuple[Plan, ...]
    mishaps: tuple[Mishap, ...] = ()
    places: tuple[Place, ...] = ()
    slots: int = 2  # where there are no places: nodes at once
    boot_s: tuple[float, ...] = (20.0,)  # in turn
    release_s: float = 5.0  # until a machine that is given back costs no more
    lease_s: float = 432_000.0  # the longest that a node has; 0: nodes have none
    idle_s: float = 600.0  # of a node on which nobody works
    restore_s: float = 0.0  # until the provider makes an evicted spot machine again; 0: it does not
    notice_s: float = 0.0  # before a place closes, for the machines there
    notes: str = field(default="", compare=False)

    @property
    def size(self) -> int:
        return len(self.plans) + len(self.mishaps)
